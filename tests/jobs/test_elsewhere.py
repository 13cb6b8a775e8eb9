"""As on a system that has nothing of what only Linux has: ``tests/startup/elsewhere.py`` takes it from each process.
And where mpicoll was installed without a C compiler, so that it has no kernel.

MPI and torch themselves go on using Linux. So this shows what mpicoll does on macOS, and not what they do there."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.jobs.jobs import NEEDS_TORCH, OURS, REPOSITORY, Done, ended, half, run, script, started, together, until

ELSEWHERE = {"MPICOLL_TESTS_ELSEWHERE": "1"}
RANKS = REPOSITORY / "tests" / "ranks"


def elsewhere(n: int, *program: str, env: dict[str, str] | None = None) -> Done:
    return run(n, *program, env=ELSEWHERE | (env or {}))


TORCHS = "torch/test_collectives.py", "torch/test_messages.py", "torch/programs/test_ddp.py"
"""Over mpicoll.torch and over the registered backend."""
TESTS = ("test_random.py", "test_random_messages.py"), pytest.param(TORCHS, marks=NEEDS_TORCH)


@pytest.mark.parametrize("files", half(TESTS), ids=" ".join)
def test_ranks(files: tuple[str, ...]) -> None:
    """These files' tests pass at two ranks."""
    options = ["-q", "--with-mpi", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    few = {"MPICOLL_DRAWS": "60"}  # of random messages
    elsewhere(2, "-m", "pytest", *options, *(str(RANKS / file) for file in files), env=few).good(" passed")


DEADLOCK = """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    comm.recv(source=1 - comm.rank)
"""


def test_a_deadlock_is_named(tmp_path: Path) -> None:
    elsewhere(2, "--watch", script(tmp_path, DEADLOCK)).bad("wait for each other", code=1)


ENDS = """
    how = sys.argv[1]
    if how == "raises":
        raise ValueError("no")
    if how == "killed" and comm.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.allreduce(x) if how == "differs" and comm.rank == 0 else comm.barrier()
    if how == "interrupted":
        print("waits", flush=True), time.sleep(600)  # one line: the signal may come as soon as that is written
"""


def test_how_a_job_ends(tmp_path: Path) -> None:
    program, host = script(tmp_path, ENDS, begin=OURS), os.uname().nodename
    for folder in ("raises", "interrupted"):
        (tmp_path / folder).mkdir()
    elsewhere(2, program, "differs").bad(
        "mpicoll: the ranks made different calls. The job ends",
        "rank 0  call 0: allreduce sum of 4 float64, at",
        "rank 1  call 0: barrier, at script.py:15",
        code=1,
    )
    raises = elsewhere(2, program, "raises", env=together(2, tmp_path / "raises"))
    raises.bad(f"mpicoll: ranks 0-1 on {host} ended by ValueError", code=1)
    assert raises.output.count("ValueError: no") == 1, "one rank speaks for both"
    killed = elsewhere(2, program, "killed").bad()
    by_others = "rank 1  its process has ended (if it was killed:" in killed.output
    assert by_others or "The last collective of each rank" in killed.output, killed.output
    argv = [sys.executable, "-m", "mpicoll", "run", "-n", "2", program, "interrupted"]
    with started(*argv, env=ELSEWHERE | together(2, tmp_path / "interrupted")) as (it, output):
        until(lambda: output.read_text().count("waits") == 2, "both ranks wait", output)
        it.process.send_signal(signal.SIGINT)
        ended(it, output).bad(f"mpicoll: ranks 0-1 on {host} ended by KeyboardInterrupt", code=130)


ASKED = """
    import subprocess

    if comm.rank == 0:
        subprocess.run([sys.executable, "-m", "mpicoll", "doctor", "--dump", str(os.getpid())], check=True)
    comm.barrier()
"""


def test_the_doctor(tmp_path: Path) -> None:
    result = elsewhere(2, "-m", "mpicoll", "doctor").good(
        "ok       shared memory  mpicoll needs Linux (memfd_create) for it: collectives are",
        "(the ranks share no memory in which mpicoll's kernel works)",
    )
    assert "/dev/shm" not in result.output
    elsewhere(2, script(tmp_path, ASKED, begin=OURS)).good("mpicoll: the last calls of each rank are in")


WITHOUT = """
    import sys

    sys.modules["mpicoll.node.kernel"] = None
"""
WITHOUT_KERNEL = """
    import numpy as np
    import mpicoll
    from mpicoll.errors import ArgumentError

    comm = mpicoll.Communicator()
    total = comm.size * (comm.size + 1) / 2
    for count in (1, 100_000):
        for made in (np.empty, comm.empty):
            x = made(count)
            x.fill(comm.rank + 1)
            assert (comm.allreduce(x) == total).all()
            assert comm.last_route == "native"
            assert (comm.allreduce(x, "max") == comm.size).all()
            assert comm.last_route == "exchange"
            comm.bcast(x, root=1)
            assert (x == 2).all()
            assert comm.last_route == "native"
    half = np.full(1000, comm.rank + 1, np.float16)
    assert (comm.scan(half) == (comm.rank + 1) * (comm.rank + 2) / 2).all()
    counts = [[3 * r + s for s in range(comm.size)] for r in range(comm.size)]
    mine, theirs = counts[comm.rank], [row[comm.rank] for row in counts]
    found = comm.alltoallv(np.full(sum(mine), comm.rank), mine, theirs)
    assert (found == np.repeat(np.arange(comm.size), theirs)).all()
    try:
        comm.barrier(algorithm="node")
    except ArgumentError as e:
        print("refused:", e)
"""


def test_calls_go_the_mpis_way(tmp_path: Path) -> None:
    script(tmp_path, WITHOUT, "sitecustomize.py")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    result = run(2, script(tmp_path, WITHOUT_KERNEL), env=env).good()
    assert result.output.count("or mpicoll has no kernel here: `mpicoll doctor`); given 'node'") == 2
    assert "comm.empty makes ordinary arrays" in result.output


def test_the_doctor_says_so(tmp_path: Path) -> None:
    script(tmp_path, WITHOUT, "sitecustomize.py")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)]), "OMP_NUM_THREADS": "1"}
    run(2, "-m", "mpicoll", "doctor", env=env).good(
        "warning  kernel         mpicoll's kernel is not there: import of",
        "-> Install a C compiler and Python's headers",
    )
