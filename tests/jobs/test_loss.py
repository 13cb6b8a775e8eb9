"""A rank that ends without a word of its own: the others say what they do, before the launcher ends them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from mpicoll.jobs.run import ExitMonitor
from mpicoll.launch.board import CrashBoard
from mpicoll.launch.failure import is_first
from tests.jobs.jobs import OURS, half, run, script, until

PROGRAM = """
    from mpicoll.launch import board

    comm.allreduce(np.ones(4))
    if comm.rank == {victim}:
        while board.last_call(1 - comm.rank) != "allreduce sum of 5 float64":
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.allreduce(np.ones(5))
"""


@pytest.mark.parametrize("victim", half([0, 1]))
def test_a_rank_is_killed(tmp_path: Path, victim: int) -> None:
    """MPICH's launcher kills the others within 10 ms, so that they may have no time to speak. Then mpicoll run does."""
    result = run(2, script(tmp_path, PROGRAM.format(victim=victim), begin=OURS)).bad()
    assert re.search(rf"^  rank {1 - victim}  (call 1: )?allreduce sum of 5 float64", result.output, re.M)
    assert re.search(
        rf"^  rank {victim}  (its process .*its last collective: )?allreduce sum of 4 float64$", result.output, re.M
    )
    assert "often the system was out of memory, see dmesg" in result.output


ENDS = """
    def abort():
        MPI.COMM_WORLD.Abort(5)
        time.sleep(60)  # MPICH's comes back before its launcher ends the rank, which may get to its end meanwhile

    if {called}:
        comm.allreduce(x)
    if comm.rank == 1:
        {how}
    MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize(
    ("how", "called", "listed"), [("abort()", True, True), ("abort()", False, False), ("raise ValueError", True, False)]
)
def test_mpicoll_run_speaks_where_no_rank_did(tmp_path: Path, how: str, called: bool, listed: bool) -> None:
    result = run(2, script(tmp_path, ENDS.format(how=how, called=called), begin=OURS))
    watcher = "its process has ended with exit code 5; its last collective: allreduce sum of 4 float64" in result.output
    first = r"mpicoll: the job has ended with 5\.( The process(es)? of ranks? [01-]+ (was|were) gone [^.]*\.)? "
    last = "The last collective of each rank:\n  ranks 0-1  allreduce sum of 4 float64"
    said = re.search(first + last, result.output) is not None
    assert watcher + said == listed, result.output


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(5)"])
def test_the_rank_that_was_gone_first_is_named(tmp_path: Path, how: str) -> None:
    """Before MPI is there, no other rank can say it."""
    program = f"""
        import os, signal, time

        if os.environ["RANK"] == "1":
            time.sleep(0.5)
            {how}
        time.sleep(3)
    """
    result = run(3, script(tmp_path, program)).bad()
    first = "process of rank 1 was gone first"
    unknown = "processes of ranks (0-1|1-2|0-2) were gone at once: which was first is not known"  # the launcher is fast
    assert re.search(f"mpicoll: the job has ended with [0-9].*[.] The ({first}|{unknown})[.]", result.output)


def until_zombie(pid: int) -> None:
    until(lambda: ") Z" in Path(f"/proc/{pid}/stat").read_text(), "the process ends")


RANK = "import os, sys; from mpicoll.launch import board; exec(sys.argv[1])"
WAYS = {
    "is over": "",
    "exits": "os._exit(5)",
    "is killed": "os.kill(os.getpid(), 9)",
    "is ended": "os.kill(os.getpid(), 15)",
    "goes on": "print('goes on', flush=True); sys.stdin.read()",
}


@pytest.mark.parametrize(
    ("ways", "first"),
    [
        (["is over", "is killed", "goes on"], [1]),
        (["is killed", "goes on", "exits"], [2]),  # a launcher kills ranks, and lets none exit
        (["exits", "is ended", "is over"], [0]),
        (["is killed", "is ended", "goes on"], [0, 1]),
        (["exits", "goes on", "exits"], [0, 2]),
        (["is over", "is over", "goes on"], []),
    ],
)
def test_which_rank_has_ended_first(ways: list[str], first: list[int]) -> None:
    """All have ended between two looks. None is named unless its end says so: a launcher is fast."""
    board = CrashBoard(len(ways))
    with ExitStack() as until_ended:
        until_ended.callback(board.close)
        for rank, way in enumerate(ways):
            env = {**os.environ, **board.variables(), "PMI_RANK": str(rank)}
            argv = [sys.executable, "-c", RANK, WAYS[way]]
            process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            until_ended.enter_context(process)
            until_ended.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()  # it goes on, or it is about to end
            if way != "goes on":
                until_zombie(process.pid)
        monitor = ExitMonitor(board, os.getpid())
        until_ended.callback(monitor.close)
        assert monitor.look() is None
        assert monitor.first == first


ENDS_EARLY = """
    import os, time
    import mpicoll

    if os.environ["RANK"] == "1":
        {how}
    else:
        mpicoll.Communicator()
"""


@pytest.mark.parametrize("how", ["time.sleep(2)", "os._exit(0)"])
def test_a_rank_ends_before_mpi_begins(tmp_path: Path, how: str) -> None:
    """All others would wait for it in MPI_Init. Open MPI's launcher notices it if it ends after they have begun."""
    result = run(2, script(tmp_path, ENDS_EARLY.format(how=how))).bad(code=1)
    ended = "rank 1 has ended before MPI began, which needs all ranks. The job ends"
    first = "the job has ended with 1. The process of rank 1 was gone first."
    assert f"mpicoll: {ended}\n" in result.output or f"mpicoll: {first}\n" in result.output, result.output


def test_a_rank_fails_before_mpi_begins_and_cannot_tell_its_launcher(tmp_path: Path) -> None:
    how = "os.closerange(3, 256); raise SystemExit(3)"
    result = run(2, script(tmp_path, ENDS_EARLY.format(how=how))).bad("rank 1 on", code=3)
    assert "Traceback" not in result.output, result.output


def test_ranks_that_do_without_mpi(tmp_path: Path) -> None:
    result = run(2, "-c", "import os, time; time.sleep(2 * int(os.environ['RANK'])); print('went on')")
    assert (result.code, result.output.split()) == (0, ["went", "on"] * 2)


CRASH = """
    import ctypes

    def crash():
        ctypes.string_at(0)

    comm.barrier()
    if comm.rank == 1:
        crash()
    comm.barrier()
"""


def test_a_crash_says_where_the_program_was(tmp_path: Path) -> None:
    result = run(2, script(tmp_path, CRASH, begin=OURS)).bad()
    assert re.search(r'script.py", line 13 in crash', result.output), result.output


def test_a_name_that_another_user_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's name can be taken by any user of the node. It does not silence this user's ranks."""
    monkeypatch.setenv("PMIX_NAMESPACE", f"test-{os.getpid()}")
    takes = "from mpicoll.launch.failure import is_first; print(is_first('it'), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", takes], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        assert not is_first("it")
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # as if that were another user's
        assert is_first("it")
        other.communicate(b"\n")
