"""Files of what each rank did last: after a mismatch, after an exception, on demand."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.jobs import OURS, TORCH, run, script, started, until

pytestmark = pytest.mark.first_mpi

BEGIN = f"""{OURS}
import shutil

here = Path(__file__).parent
for _ in range(600):
    comm.allreduce(x)

def is_ready():
    (here / f"pid{{rank}}.new").write_text(str(os.getpid()))
    (here / f"pid{{rank}}.new").rename(here / f"pid{{rank}}")
"""
GROUP = f"{TORCH}here = Path(__file__).parent\nfor _ in range(600):\n    dist.all_reduce(x)\n"
DESYNCHRONISED = GROUP + "dist.barrier() if rank == 2 else dist.all_reduce(x)\ndist.barrier()\n"


def said(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"rank{rank}.json").read_text())
    return found


def most_calls(folder: Path, rank: int) -> dict[str, Any]:
    """The communicator with the most calls."""
    found: dict[str, Any] = max(said(folder, rank)["communicators"], key=lambda each: len(each["calls"]))
    return found


def last_call(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = most_calls(folder, rank)["calls"][-1]
    return found


def main_thread(folder: Path, rank: int) -> str:
    """Its stack."""
    (stack,) = (thread["stack"] for thread in said(folder, rank)["threads"] if thread["name"] == "MainThread")
    return "\n".join(stack)


def test_a_desynchronised_job(tmp_path: Path) -> None:
    folder = tmp_path / "calls" / "here"
    result = run(3, script(tmp_path, DESYNCHRONISED), env={"MPICOLL_DUMP": str(folder)}).bad()
    assert result.output.count(f"the last calls of each rank are in {folder}") == 1
    words = [last_call(folder, rank)["description"] for rank in range(3)]
    assert words == ["allreduce sum of 4 float32", "allreduce sum of 4 float32", "barrier"]
    for rank in range(3):
        known, call = said(folder, rank), last_call(folder, rank)
        assert (known["rank"], known["why"]) == (rank, "the ranks made different calls. The job ends")
        assert (Path(call["file"]).name, call["line"]) == ("script.py", 11)
        assert {"mpicoll", "python", "mpi4py", "MPI", "torch"} <= known["versions"].keys()
        assert "script.py:11" in main_thread(folder, rank)


def test_an_exception_ends_the_job(tmp_path: Path) -> None:
    """All ranks write their files, not only the one that fails, which does so when the others wait for it."""
    program = f"""{BEGIN}
from mpicoll.launch import board

if rank == 1:
    while not all(board.last_call(other) == "allreduce sum of 5 float64" for other in (0, 2)):
        time.sleep(0.01)
    raise ValueError("no such number")
comm.allreduce(np.ones(5))
"""
    result = run(3, script(tmp_path, program), env={"MPICOLL_DUMP": str(tmp_path / "calls")}).bad()
    assert result.output.count("ValueError: no such number") == 1
    known = [said(tmp_path / "calls", rank) for rank in range(3)]
    assert {each["why"] for each in known} == {"ValueError: no such number"}
    assert len({each["pid"] for each in known}) == 3


@pytest.mark.parametrize(("fails", "writes"), [("raise ValueError", False), ("comm.allreduce(x, op='nope')", True)])
def test_nobody_has_named_a_folder(tmp_path: Path, fails: str, writes: bool) -> None:
    """The traceback of an exception says all, where its cause is no call of mpicoll's."""
    program = f"{BEGIN}comm.barrier()\nif rank == 1:\n    {fails}\ncomm.allreduce(x)\n"
    result = run(2, script(tmp_path, program), env={"MPICOLL_DUMP": "", "TMPDIR": str(tmp_path)}).bad()
    assert ("the last calls of each rank are in" in result.output) == writes, result.output
    assert len([*tmp_path.glob("mpicoll-calls-*")]) == int(writes)


@contextmanager
def ready(folder: Path, n: int, program: str, **env: str) -> Iterator[tuple[list[int], Path]]:
    """The processes of a job's ranks when all are ready, and its output."""
    argv = [sys.executable, "-m", "mpicoll", "run", "-n", str(n), script(folder, program)]
    with started(*argv, env=env) as (_, output):
        files = [folder / f"pid{rank}" for rank in range(n)]
        until(lambda: all(file.exists() for file in files), "ranks have begun", output)
        yield [int(file.read_text()) for file in files], output


def test_on_demand_while_ranks_are_in_mpi(tmp_path: Path) -> None:
    """In the folder that nobody has named, which all ranks of the node share."""
    blocked = BEGIN + "is_ready()\ntime.sleep(600) if rank == 1 else comm.allreduce(x)\n"
    with ready(tmp_path, 3, blocked, MPICOLL_DUMP="", TMPDIR=str(tmp_path)) as (pids, output):

        def they_wait() -> bool:
            for old in tmp_path.glob("mpicoll-calls-*/*"):
                old.unlink()
            os.kill(pids[1], signal.SIGURG)
            until(lambda: len([*tmp_path.glob("mpicoll-calls-*/rank?.json")]) == 3, "all ranks write", output)
            (folder,) = tmp_path.glob("mpicoll-calls-*")
            return all(last_call(folder, rank)["state"] == "under way" for rank in (0, 2))

        until(they_wait, "ranks 0 and 2 are in their last call", output)
        (folder,) = tmp_path.glob("mpicoll-calls-*")
        until(lambda: f"each rank are in {folder}" in output.read_text(), "the job says where they are", output)
        assert [said(folder, rank)["why"] for rank in range(3)] == ["a signal has asked for it"] * 3
        assert [said(folder, rank)["pid"] for rank in range(3)] == pids
        assert [last_call(folder, rank)["state"] for rank in range(3)] == ["under way", "done", "under way"]
        assert all("script.py:20" in main_thread(folder, rank) for rank in (0, 1))


def test_on_demand_wherever_the_job_writes(tmp_path: Path) -> None:
    """The program has changed its directory and its environment since it began."""
    begin = "import os, pathlib\nos.chdir(pathlib.Path(__file__).parent)\nos.environ['MPICOLL_DUMP'] = 'calls'\n"
    program = f"{begin}{BEGIN}\ndel os.environ['MPICOLL_DUMP']\nos.chdir('/')\nis_ready()\ntime.sleep(600)\n"
    folder = tmp_path / "calls"
    with ready(tmp_path, 2, program) as (pids, output):
        os.kill(pids[1], signal.SIGURG)
        until(lambda: f"the last calls of each rank are in {folder}" in output.read_text(), "they are said", output)
        assert [said(folder, rank)["pid"] for rank in range(2)] == pids


def test_the_programs_own_handler_stays(tmp_path: Path) -> None:
    program = """
    import os, signal
    import mpicoll

    came = []
    signal.signal(signal.SIGURG, lambda *_: came.append(1))
    comm = mpicoll.Communicator()
    os.kill(os.getpid(), signal.SIGURG)
    comm.barrier()
    assert came == [1]
    """
    run(2, script(tmp_path, program), env={"MPICOLL_DUMP": str(tmp_path / "calls")}).good()
    assert not list((tmp_path / "calls").iterdir())


def test_messages(tmp_path: Path) -> None:
    """A message is named though it is over."""
    program = f"""{GROUP}
dist.send(x, 1, tag=7) if rank == 0 else dist.recv(x, 0, tag=7)
dist.send_object_list([x], 1) if rank == 0 else dist.recv_object_list([None], 0)
if rank == 1:
    raise ValueError("only here")
dist.all_reduce(x)
"""
    folder = tmp_path / "calls"
    run(2, script(tmp_path, program), env={"MPICOLL_DUMP": str(folder)}).bad()
    zero, one = (most_calls(folder, rank) for rank in range(2))
    for known, what in (zero, "was taken by rank 1 (tag 7)"), (one, "came from rank 0 (tag 7)"):
        message = known["messages"][0]
        assert (message["what"], message["elements"], message["dtype"]) == (what, 4, "float32")


def test_files_that_cannot_be_written_hide_no_error(tmp_path: Path) -> None:
    """The folder is lost while the program runs."""
    folder = tmp_path / "calls"
    program = f"""{BEGIN}
if rank == 0:
    shutil.rmtree(here / "calls")
    (here / "calls").touch()
comm.barrier()
raise ValueError("no such number")
"""
    run(2, script(tmp_path, program), env={"MPICOLL_DUMP": str(folder)}).bad(
        "ValueError: no such number", f"ranks 0-1 could not write the last calls to {folder}: FileExistsError"
    )
