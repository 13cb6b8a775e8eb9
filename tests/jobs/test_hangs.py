"""Programs of plain mpi4py and torch that hang, or lose a message, as people post them. What is said stands in each."""

from __future__ import annotations

import re
from ast import get_docstring, parse
from pathlib import Path
from textwrap import dedent

import pytest

from tests.jobs.jobs import NEEDS_TORCH, Done, half, python, run, script
from tests.jobs.programs import plain_mpi, plain_others

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples/hangs"
HANGS = sorted(file.stem for file in FOLDER.glob("*.py"))
PLAIN_TORCH = str(Path(plain_mpi.__file__).with_name("plain_torch.py"))
BEGIN = "import time\nimport numpy as np\nfrom mpi4py import MPI\ncomm, x = MPI.COMM_WORLD, np.ones(4)\n"
LOSES = "forgotten_wait", "nobody_receives"
"""They come to their end."""


def watched(n: int, *program: str, timeout: str = "600") -> Done:
    env = {"MPICOLL_TIMEOUT": timeout, "OMPI_MCA_osc": "^ucx"}  # that component complains of its absence
    return run(n, "--watch", *program, env=env)


def by_torchrun(*program: str, timeout: str = "600", interval: int = 1) -> Done:
    """Unchanged. torchrun looks at its ranks so often, in seconds: when one has ended, it ends the others, which say
    before what they see. Its own tenth of a second would be too short for that on a busy machine."""
    of_nccl = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "2"}  # where ranks share a GPU
    watch = {"MPICOLL_WATCH": "1", "MPICOLL_TIMEOUT": timeout, "PYTHONPATH": str(FOLDER.parents[1])}
    argv = ["-m", "torch.distributed.run", "--standalone", "--monitor-interval", str(interval), "--nproc-per-node", "2"]
    return python(*argv, *program, env=watch | of_nccl)


@pytest.mark.parametrize("name", half(HANGS))
def test_a_hang_is_named(name: str) -> None:
    file = FOLDER / f"{name}.py"
    result = watched(2, str(file))
    said = re.sub(" +", " ", result.output)
    for line in (get_docstring(parse(file.read_text())) or "").splitlines()[2:]:
        assert line.strip() in said, result.output
    assert (result.code == 0) == (name in LOSES), result.output


UNKNOWN = {
    "a window that is not posted": (
        """
        first, second = (MPI.Win.Create(np.zeros(1), comm=comm) for _ in range(2))
        group = comm.Get_group()
        first.Start(group.Incl([1])) if comm.rank == 0 else second.Post(group.Incl([0]))
        first.Complete() if comm.rank == 0 else second.Wait()
        """,
        "rank 1  Win.Wait: no Complete came, at script.py:9",
    ),
    "a partition that is not ready": (
        """
        request = comm.Psend_init(x, len(x), 1, tag=5) if comm.rank == 0 else comm.Precv_init(x, len(x), 0, tag=5)
        request.Start()
        if comm.rank == 0:
            request.Pready_range(1, len(x) - 1)
        request.Wait()
        """,
        "rank 0  Psend_init: no message was taken by rank 1 (tag 5), at script.py:10",
    ),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_the_timeout_ends_a_wait_of_which_little_is_known(what: str, tmp_path: Path) -> None:
    text, said = UNKNOWN[what]
    watched(2, script(tmp_path, BEGIN + dedent(text)), timeout="3").bad("a call was not complete in time", said)


@pytest.mark.parametrize("ranks", half([2, 3]))
def test_nothing_is_said_of_legal_calls(ranks: int) -> None:
    result = watched(ranks, plain_mpi.__file__, "1", "600").good()
    assert sorted(result.output.splitlines()) == [f"rank {rank} has made 600 calls" for rank in range(ranks)]


def test_nothing_is_said_of_programs_in_which_more_goes_on() -> None:
    names = ["threads", "with_asyncio", "pool", "duplicated", "spawned", "connected", "signals"]
    result = watched(3, plain_others.__file__, *names)
    assert (result.code, result.output.split()) == (0, names), result.output


PROGRAMS = {
    "each call is noted once": (
        """
        import mpicoll

        ours = mpicoll.Communicator(comm)
        for _ in range(3):
            ours.allreduce(x)  # it makes them by mpi4py
        comm.Barrier() if comm.rank == 0 else ours.barrier()
        """,
        ["rank 0  call 0: Barrier, at script.py:11", "rank 1  call 3: barrier, at script.py:11"],
    ),
    "a rank whose call MPI refuses goes on": (  # it has sent nothing, and calls again
        """
        try:
            comm.Bcast(x, root=99 if comm.rank == 1 else 0)
        except MPI.Exception:
            print("refused", flush=True)
            comm.Bcast(x)
            time.sleep(8)  # more than others wait in a call that has ended midway
        comm.Barrier()
        """,
        [],
    ),
    "a rank catches what MPI says of different calls": (  # they are compared before it can go on with wrong data
        """
        try:
            comm.Bcast(np.ones(1000)[: 100 if comm.rank else 1000])
        except MPI.Exception:
            print("went on", flush=True)
        """,
        ["the ranks made different calls"],
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_what_is_noted_of_calls(what: str, tmp_path: Path) -> None:
    text, said = PROGRAMS[what]
    result = watched(2, script(tmp_path, BEGIN + dedent(text)))
    assert (result.code == 0) == (not said), result.output
    for piece in said:
        assert piece in result.output, result.output
    assert said or result.output == "refused\n"
    assert "went on" not in result.output, result.output


BEGINS = {
    "itself": """
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        import mpicoll

        MPI.Init()
        mpicoll.watch()
        mpicoll.watch()
        MPI.COMM_WORLD.bcast(1, root=MPI.COMM_WORLD.rank)
        MPI.Finalize()
    """,
    "before the watch, as where Python imports mpi4py when it begins": """
        from mpi4py import MPI
        from mpicoll.watching.start import watch_from_init

        watch_from_init()
        MPI.COMM_WORLD.bcast(1, root=MPI.COMM_WORLD.rank)
        MPI.COMM_WORLD.barrier()
    """,
}


@pytest.mark.parametrize("how", BEGINS)
def test_the_program_begins_mpi(how: str, tmp_path: Path) -> None:
    result = run(2, script(tmp_path, BEGINS[how])).bad()
    assert re.search(r"rank 1  call 0: bcast root 1, at script.py:\d+", result.output), result.output


@pytest.mark.parametrize("asks", [False, True])
def test_another_library_has_begun_mpi(asks: bool, tmp_path: Path) -> None:
    """The program goes on, and a line says how it can be watched."""
    program = f"""
        import ctypes
        from pathlib import Path
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        import mpicoll

        files = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
        ctypes.CDLL(next(file for file in files if Path(file).name.startswith("libmpi.so"))).MPI_Init(None, None)
        if {asks}:
            mpicoll.watch()
        print(MPI.COMM_WORLD.allreduce(1))
        MPI.Finalize()
    """
    result = watched(2, script(tmp_path, program))
    assert (result.code, result.output.count("2\n")) == (0, 2), result.output
    assert result.output.count("are not watched: mpi4py did not begin MPI. Call mpicoll.watch()") == 2 * (not asks)


DIFFERENT = "the ranks made different calls"
CRASHED = f"{DIFFERENT}|a rank's process has ended before its program has|The last collective of each rank"
"""Gloo ends a process that gets more than it expects, at once, and the others speak after that."""
ENDED, STUCK, LATE = "a rank has finished", "ranks wait for each other", "a call was not complete in time"
TORCH = {
    "ended": (ENDED, "of 12 float32, at plain_torch.py"),
    "split": (DIFFERENT, "rank 1  call 1: broadcast of 4 float32 root 1, at plain_torch.py"),
    "functional_sum": (STUCK, "rank 0  call 1: all_reduce sum of 4 float32, at plain_torch.py"),
    "inference": (DIFFERENT, "rank 1  call 1: all_reduce max of 2 float32, at plain_torch.py"),
    "group_under_if": (DIFFERENT, "rank 0  call 1: new_group of ranks 0-1, at plain_torch.py"),
    "other_group": (DIFFERENT, "rank 0  call 1: new_group of rank 0, at plain_torch.py"),
    "destroyed": ("a rank has freed the communicator, and others still use it", "has not arrived and has freed"),
    "groups": (STUCK, "rank 0  call 0: all_reduce sum of 4 float32, at plain_torch.py"),
    "each_receives_first": (STUCK, "rank 0  recv: no message came from rank 1 (tag 3), at plain_torch.py"),
}
GLOO = {
    "handles": (DIFFERENT, "(while it handles ValueError: the cause)"),
    "the_program_ends": (ENDED, "rank 0 "),
    "the_sender_ends": (ENDED, "no message came from rank 1 (tag 0)"),
    "other_collective": (DIFFERENT, "rank 1  call 1: broadcast of 4 float32 root 0"),
    "other_length": (CRASHED, "rank "),
    "other_dtype": (CRASHED, "rank "),
    "other_root": (DIFFERENT, "root 1"),
    "stopped": (LATE, "does not answer"),
    "busy": (LATE, "has not arrived"),
    "other_tag": (STUCK, "no message came from rank 0 (tag 1)"),
    "message_before_a_barrier": (STUCK, "rank 0 (tag 0)"),
}
"""By name: a pattern of the report's first line, and what one of the others says. The latter run over gloo alone."""


@NEEDS_TORCH
@pytest.mark.parametrize("name", [*half(TORCH), *half(GLOO)], ids=lambda name: f"{'gloo-' * (name in GLOO)}{name}")
def test_a_hang_of_torch_is_named(name: str) -> None:
    title, line = (TORCH | GLOO)[name]
    for _ in range(10):
        timeout, interval = "3" if title == LATE else "600", 20 if title == CRASHED else 1
        result = by_torchrun(PLAIN_TORCH, name, timeout=timeout, interval=interval)
        # torch's own split_group has hung, which it does in a third of its calls on a busy machine.
        if "Timeout (0:00:10)!" not in result.output:
            break
    result.bad(line)
    assert re.search(title, result.output), result.output


@NEEDS_TORCH
def test_nothing_is_said_of_torchs_legal_calls() -> None:
    result = by_torchrun(PLAIN_TORCH, "legal").good()
    assert "mpicoll: " not in result.output, result.output
    assert result.output.count("is done") == 2, result.output
