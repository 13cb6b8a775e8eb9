"""Files of what each rank did last: after a mismatch, after an exception, on demand. torch's tool reads them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mpicoll.errors import ArgumentError
from mpicoll.supervise.dump import ask_for_dump
from tests.jobs.jobs import ON_LINUX, OURS, TORCH, python, run, script, started, until

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


def torchfrtrace(folder: Path) -> str:
    argv = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    result = subprocess.run(argv, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def test_a_desynchronised_job(tmp_path: Path) -> None:
    folder = tmp_path / "calls" / "here"
    result = run(3, script(tmp_path, DESYNCHRONISED), env={"MPICOLL_DUMP": str(folder)}).bad()
    assert result.output.count(f"the last calls of each rank are in {folder}") == 1
    found = torchfrtrace(folder)
    assert "Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH" in found
    assert "Expected collective type: 'all_reduce' does not match found collective type: 'barrier'" in found
    assert "script.py:11" in found
    words = [last_call(folder, rank)["description"] for rank in range(3)]
    assert words == ["allreduce sum of 4 float32", "allreduce sum of 4 float32", "barrier"]
    for rank in range(3):
        known, call = said(folder, rank), last_call(folder, rank)
        assert (known["rank"], known["why"]) == (rank, "the ranks made different calls. The job ends")
        assert (Path(call["file"]).name, call["line"]) == ("script.py", 11)
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
    assert "missing ranks: {1}" in torchfrtrace(tmp_path / "calls")


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


@ON_LINUX
def test_on_demand_while_ranks_are_in_mpi(tmp_path: Path) -> None:
    """In the folder that nobody has named, which all ranks of the node share."""
    blocked = BEGIN + "is_ready()\ntime.sleep(600) if rank == 1 else comm.allreduce(x)\n"
    with ready(tmp_path, 3, blocked, MPICOLL_DUMP="") as (pids, output):

        def they_wait() -> bool:
            folder = ask_for_dump(pids[0])
            written = all((folder / f"rank{rank}.json").exists() for rank in range(3))
            return written and all(last_call(folder, rank)["state"] == "under way" for rank in (0, 2))

        until(they_wait, "ranks 0 and 2 are in their last call", output)
        began = time.time()
        folder = Path(python("-m", "mpicoll", "doctor", "--dump", str(pids[1])).good().output.strip())
        until(lambda: all(said(folder, rank)["written"] >= began for rank in range(3)), "all ranks write", output)
        assert said(folder, 2)["why"] == "a signal has asked for it"
        assert [said(folder, rank)["pid"] for rank in range(3)] == pids
        assert [last_call(folder, rank)["state"] for rank in range(3)] == ["under way", "done", "under way"]
        assert all("script.py:20" in main_thread(folder, rank) for rank in (0, 1))
        until(lambda: str(folder) in output.read_text(), "the job says where they are", output)
    shutil.rmtree(folder)


@ON_LINUX
def test_on_demand_wherever_the_job_writes(tmp_path: Path) -> None:
    """Who asks knows neither the directory nor the environment in which a rank has begun. If the rank cannot write its
    files, the answer says why."""
    begin = "import os, pathlib\nos.chdir(pathlib.Path(__file__).parent)\nos.environ['MPICOLL_DUMP'] = 'calls'\n"
    program = f"{begin}{BEGIN}\ndel os.environ['MPICOLL_DUMP']\nos.chdir('/')\nis_ready()\ntime.sleep(600)\n"
    folder = tmp_path / "calls"
    with ready(tmp_path, 2, program) as (pids, _):
        asked = python("-m", "mpicoll", "doctor", "--dump", str(pids[1]))
        assert (asked.code, asked.output.strip()) == (0, str(folder))
        assert said(folder, 1)["pid"] == pids[1]
        shutil.rmtree(folder)
        folder.write_text("this is no folder")
        with pytest.raises(ArgumentError, match=f"{pids[1]}, which cannot write its files .*FileExistsError"):
            ask_for_dump(pids[1])


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


@pytest.mark.parametrize("pid", [os.getpid(), 1 << 22 | 1], ids=["no rank", "no process"])
def test_a_process_that_cannot_be_asked(pid: int) -> None:
    with pytest.raises(ArgumentError, match="doctor: --dump: expected a rank's process"):
        ask_for_dump(pid)


@pytest.mark.parametrize(
    ("asked", "scancel", "says"),
    [
        ("job:81", "echo 'scancel: error: Invalid job id 81' >&2", "given 81 (scancel: error: Invalid job id 81)"),
        ("job:81", "exit 1", "given 81 (scancel ended with 1)"),
        ("job:x", "", "expected a process of this node, as 1234, or a job of Slurm's, as job:1234; given 'job:x'"),
    ],
)
def test_a_job_that_cannot_be_asked(asked: str, scancel: str, says: str, tmp_path: Path) -> None:
    script(tmp_path, f"#!/bin/sh\n{scancel}\n", "scancel")
    (tmp_path / "scancel").chmod(0o755)
    result = python("-m", "mpicoll", "doctor", "--dump", asked, env={"PATH": str(tmp_path)}).bad(code=2)
    assert says in " ".join(result.output.split())


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
