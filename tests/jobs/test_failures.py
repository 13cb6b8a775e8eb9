"""One rank's mistake ends the whole job: promptly, with what was wrong on stderr, and a code that is not zero.

The other ranks are in the call by then and would wait for ever. The end must come under ``mpicoll run`` and under the
MPI's own launcher with plain ``python script.py`` alike; ``jobs`` fails a job that has none. And the reverse: jobs
that must end well though they leave something unfinished."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.jobs import OURS, half, plainly, run, script, together
from tests.sharing import NEEDS_SHARED

pytestmark = pytest.mark.usefixtures("usual_end")

GROUP = f"{OURS}import torch\nimport torch.distributed as dist\ndist.init_process_group('mpicoll')\n"
UNEVEN = """
work = dist.all_to_all_single(
    torch.zeros(6), torch.zeros(6 - (rank == 1)), [2] * 3, [2 - (rank == 1), 2, 2], async_op=True
)
"""
TOO_FEW = ["MessageError", "alltoallv: expected 2 elements from rank 1; it sends 1"]

# The program, and the pieces of what must be on stderr. Rank 0 or rank 1 is at fault; no other may be. One of each way
# in which a rank's mistake comes to light. How a job ends depends on the launcher: the first ones run on both MPIs, and
# also start by `mpicoll run`.
ON_BOTH = {
    "wrong root": (
        f"{OURS}comm.bcast(x, root=3 if rank == 1 else 0)",
        ["ArgumentError", "bcast: root", "0 to 2", "given 3"],
    ),
    "ranks disagree, found on the worker's thread": (f"{GROUP}{UNEVEN}work.wait()", TOO_FEW),
    "ranks disagree, and the program ends without waiting": (f"{GROUP}{UNEVEN}sys.exit()", TOO_FEW),
    "an error of the program's own": (
        f"{OURS}if rank == 1: raise KeyError('of the program')",
        ["KeyError", "of the program"],
    ),
}
MISTAKES = ON_BOTH | {
    "a received array that is too short": (
        f"{OURS}comm.recv(np.zeros(1), 0) if rank == 1 else comm.send(x, 1) if rank == 0 else comm.barrier()",
        ["MessageError", "recv"],
    ),
    "a received array that is too short, and the message is here already": (
        f"""{OURS}
if rank == 0:
    comm.send(x, 1)
    comm.send(x, 1, tag=1)
elif rank == 1:
    comm.recv(x, 0, tag=1)
    comm.recv(np.zeros(1), 0)
""",
        ["MessageError", "recv"],
    ),
    "a long message of another length": (
        f"{OURS}comm.bcast(np.ones(2**17 - (rank == 1)))",
        ["the ranks made different calls. The job ends", "rank 1 ", "bcast of 131071 float64 root 0"],
    ),
    # MPICH ends the job as soon as rank 0 has the block of rank 1, so both let the last rank make its call.
    "shapes that differ": (
        f"{OURS}comm.barrier()\ntime.sleep(0 if rank == 2 else 0.5)\ncomm.allgather(np.zeros(2 + rank))",
        ["allgather of 3 float64", "allgather of 4 float64"],
    ),
    "after MPI.Finalize()": (
        f"{OURS}comm.barrier()\nMPI.Finalize()\ncomm.allreduce(x)",
        ["StateError", "allreduce", "MPI was finalised"],
    ),
}


@pytest.mark.parametrize(
    ("mistake", "start"),
    [
        *(pytest.param(mistake, plainly, id=f"{mistake}-mpirun") for mistake in half(MISTAKES, on_both=ON_BOTH)),
        *(pytest.param(mistake, run, id=f"{mistake}-mpicoll run") for mistake in half(ON_BOTH)),
    ],
)
def test_one_ranks_mistake_ends_the_job(tmp_path: Path, mistake: str, start: object) -> None:
    assert callable(start)
    text, said = MISTAKES[mistake]
    result = start(3, script(tmp_path, f"{text}\ncomm.barrier()\nprint('went on')\n")).bad(*said)
    assert "went on" not in result.output
    assert "Segmentation fault" not in result.output


MEET = """\
from mpicoll.launch.launch_env import launched_rank
import mpicoll, numpy as np
comm = mpicoll.Communicator()
"""
FAILURES = {
    "of the program": "raise KeyError('of the program')",
    "of a call": "comm.allreduce(np.ones(2), op='nope')",
    "before MPI is initialised": "import no_such_module",
}


@pytest.mark.parametrize("who", ["one rank", "all ranks"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_said_once_with_the_users_frames(tmp_path: Path, failure: str, who: str) -> None:
    """No frame of what starts the program or of mpicoll's inside, no box of the launcher's, and the ranks' numbers."""
    begin = "from mpicoll.launch.launch_env import launched_rank\n" if failure == "before MPI is initialised" else MEET
    fails = f"def step():\n    {FAILURES[failure]}\n"
    which = "launched_rank() == 1" if who == "one rank" else "True"
    wait = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
    program = script(tmp_path, f"{begin}{fails}if {which}:\n    step()\n{wait}")
    result = run(3, program, env=together(1 if who == "one rank" else 3, tmp_path))
    # On a slow machine, Open MPI adds that it cannot reach a rank that has ended.
    lines = [line for line in result.output.splitlines() if " PMIX ERROR: " not in line]
    assert result.code == 1, result.output
    ranks = "rank 1" if who == "one rank" else "ranks 0-2"
    assert re.fullmatch(rf"mpicoll: {ranks} on \S+ ended by \w+", lines[0]), result.output
    assert [re.findall(r'File "(.*?)"', line) for line in lines if line.startswith("  File")] == [[program]] * 2
    assert lines[1] == "Traceback (most recent call last):", result.output
    assert "Error: " in lines[-1], result.output
    assert len([line for line in lines if not line.startswith(" ")]) == 3, result.output


BARRIER = "import sys\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\nMPI.COMM_WORLD.Barrier()\n"


@pytest.mark.parametrize(
    ("ranks", "text", "said"),
    [
        (
            range(3),
            "sys.exit('no such file: x.csv')",
            r"^mpicoll: ranks 0-2 on \S+ ended by sys.exit, at script.py:5 in <module>\nno such file: x.csv\n$",
        ),
        (
            range(2),
            "if rank < 2: raise KeyError(f'of rank {rank}')\nMPI.COMM_WORLD.Barrier()",
            r"mpicoll: rank RANK on \S+ ended by KeyError\nTraceback.*\n(  .*\n)+KeyError: 'of rank RANK'\n",
        ),
        (range(3), "if rank == 0: raise RuntimeError('the cause')\nsys.exit(1)", "RuntimeError: the cause"),
    ],
    ids=["an exit", "failures that differ", "others just exit"],
)
def test_what_is_said_of_several_ranks(tmp_path: Path, ranks: range, text: str, said: str) -> None:
    result = run(3, script(tmp_path, BARRIER + text), env=together(len(ranks), tmp_path)).bad(code=1)
    for rank in ranks:
        assert re.search(said.replace("RANK", str(rank)), result.output), result.output


@pytest.mark.parametrize(
    "fails",
    [
        "sys.exit(256)",  # 0, to those who see no more than eight bits of it
        "sys.stderr.close(); raise KeyError",
        "sys.stdout = type('Tee', (), {'write': sys.__stdout__.write})(); raise KeyError",
    ],
)
def test_others_that_compute_are_ended(tmp_path: Path, fails: str) -> None:
    program = f"{OURS}comm.barrier()\nif rank == 1:\n    {fails}\ntime.sleep(600)\n"
    assert run(2, script(tmp_path, program)).code != 0


CHILDREN = {"raise KeyError": 1, "sys.exit(3)": 3, "sys.exit('why')": 1, "pass": 0}
FORKS = """
import atexit
atexit.register(sys.stdout.write, "a handler\\n")
ends = {ends}
for code in ends:
    child = os.fork()
    if child == 0:
        break
    found = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.stdout.write(f"{{code}} ended with {{found}}\\n")
if child == 0:
    exec(code)
else:
    mpicoll.Communicator().barrier()
"""


@pytest.mark.parametrize(
    ("ends", "start", "begin"),
    [([*CHILDREN], run, OURS), (["sys.exit(3)"], run, "import os, sys, mpicoll"), (["raise KeyError"], plainly, OURS)],
    ids=["MPI has begun", "before", "mpirun"],
)
def test_a_forked_child_ends_itself_alone(tmp_path: Path, ends: list[str], start: object, begin: str) -> None:
    """Its parent, the rank, goes on: a child that ends must neither end the job nor finalise the parent's MPI."""
    assert callable(start)
    result = start(2, script(tmp_path, begin + FORKS.format(ends=ends))).good()
    for end in ends:
        assert result.output.count(f"{end} ended with {CHILDREN[end]}\n") == 2, result.output
    assert result.output.count("a handler") == 2 * (len(ends) + 1), result.output
    assert "mpicoll: " not in result.output, result.output


# Jobs that leave something unfinished, and end well.
ENDINGS = {
    "nobody waits": f"{GROUP}works = [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(20)]",
    "nobody waits, and the default group is destroyed": f"""{GROUP}
works = [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(20)]
dist.destroy_process_group()
""",
    "nothing is destroyed, and one rank comes late": f"""{GROUP}
group = dist.new_group([0, 1])
import atexit
ones = torch.ones(3)
if rank == 1:
    time.sleep(0.5)
work = dist.all_reduce(ones, async_op=True)
atexit.register(lambda: work.wait() and ones.tolist() == [3, 3, 3] or os._exit(1))
""",
    "MPI is finalised before a Communicator is used": f"""{OURS}
from mpicoll.errors import StateError

comm.allreduce(x)
MPI.Finalize()
for call in (comm.allreduce, comm.bcast, comm.allgather, lambda x: comm.send(x, 0), lambda x: comm.node):
    try:
        call(x)
    except StateError as e:
        assert "MPI was finalised" in str(e)
    else:
        sys.exit("it was used")
""",
    "MPI is finalised before the group is destroyed": f"""{GROUP}
dist.all_reduce(torch.ones(2))
MPI.Finalize()
dist.destroy_process_group()
assert not dist.is_initialized()
""",
}


@pytest.mark.parametrize("ending", half(ENDINGS, on_both=["nobody waits"]))
def test_jobs_that_end_well(tmp_path: Path, ending: str) -> None:
    result = plainly(3, script(tmp_path, f"{ENDINGS[ending]}\nsys.stdout.write('went ' + 'on\\n')\n")).good()
    assert result.output.count("went on") == 3, result.output
    assert "Traceback" not in result.output


@NEEDS_SHARED  # elsewhere MPI says what it likes
@pytest.mark.parametrize("blocks", [(3, 4), (3, 40_000)])
def test_blocks_of_two_lengths_among_neighbours(tmp_path: Path, blocks: tuple[int, int]) -> None:
    program = f"""{OURS}
line = mpicoll.Communicator(MPI.COMM_WORLD.Create_cart([comm.size]))
line.neighbor_allgather(np.ones({blocks}[rank % 2]))
"""
    run(3, script(tmp_path, program)).bad("different calls", *(f"neighbor_allgather of {n} float64" for n in blocks))
