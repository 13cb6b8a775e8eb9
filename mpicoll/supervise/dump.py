"""The files of a process's last calls: JSON for people, and a pickle for ``torchfrtrace`` (torch's
torch/distributed/flight_recorder). A process that gets SIGURG lets all processes of its job write them."""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import signal
import socket
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.errors import ArgumentError, TimeoutError
from mpicoll.machine import linux
from mpicoll.machine.system import write_whole
from mpicoll.supervise.messages import Files
from mpicoll.supervise.record import BROKEN, DONE, ENDED_MIDWAY, LENGTH, UNDER_WAY, Made
from mpicoll.supervise.sites import Site, frames_now, line_of
from mpicoll.supervise.watched import Watched

if TYPE_CHECKING:
    import asyncio


_ANSWER = "mpicoll-files"
"""The open file in which a process says where it has written: it may have changed its directory since it began."""


class DumpWriter:
    """Writes the files of this process, which is ``rank`` of the job's world. ``given`` is the folder, or empty."""

    def __init__(self, rank: int, given: str, job: str, communicators: Callable[[], Iterable[Watched]]) -> None:
        self._rank, self._communicators = rank, communicators
        self._folder = checked_folder(given) if given else Path(tempfile.gettempdir(), _DEFAULT + job)
        self._answer: int | None = None
        with suppress(OSError):  # a container may forbid it: then nobody can ask
            self._answer, _ = linux.new_file(_ANSWER)

    def write(self, why: str, since: dict[str, int]) -> Files:
        """Write the files. ``since`` is the first call of each communicator that counts for torchfrtrace."""
        files = Files(str(self._folder), "")
        try:
            known = snapshot(self._rank, why, self._communicators())
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(self._folder / f"torch_rank_{self._rank}", pickle.dumps(recording(known, since)))
            write_whole(self._folder / f"rank{self._rank}.json", json.dumps(known, indent=1))
        except Exception as e:  # whatever it is, it must not hide what the files are for
            files = Files("", f"{self._folder}: {type(e).__name__}: {e}")
        if self._answer is not None:
            text = json.dumps([files.folder, files.failure, time.time()]).encode()
            with suppress(OSError):  # no memory left: whoever asks gives up in time
                os.ftruncate(self._answer, os.pwrite(self._answer, text, 0))
        return files


# -- where files go. What cannot be written is refused before a job has begun -----------------------------------------


_DEFAULT = "mpicoll-calls-"
"""How the names of folders begin that nobody has named. The processes of a job on one node have the same."""


def checked_folder(given: str) -> Path:
    """The folder, made if it is not there. Raises ArgumentError unless files can be written to it."""
    folder = Path(given).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as e:
        raise ArgumentError("mpicoll", "MPICOLL_DUMP", "a folder that can be written", f"{given!r} ({e})") from None
    return folder


def file_of_part(file: Path, first: int) -> Path:
    """The file of ranks of which this is the first: those that share no communicator with rank 0 have their own."""
    return file.with_stem(f"{file.stem}-from-rank-{first}") if first else file


def checked_trace(given: str, first: int) -> Path:
    """The file of ranks of which this is the first, not made yet. Raises ArgumentError unless it can be written."""
    file = file_of_part(Path(given).absolute(), first)
    existed = file.exists()
    try:
        file.open("ab").close()
    except OSError as e:
        raise ArgumentError("mpicoll", "MPICOLL_TRACE", "a file that can be written", f"{given!r} ({e})") from None
    if not existed:
        file.unlink(missing_ok=True)
    return file


# -- what a process has done last, and what its threads do now, as plain values ---------------------------------------


def snapshot(rank: int, why: str, communicators: Iterable[Watched]) -> dict[str, Any]:
    """What this process has done, which is ``rank`` of the job's world. ``why`` says what the snapshot is for."""
    return {
        "why": why,
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "written": time.time(),
        "communicators": [_communicator(each) for each in communicators],
        "threads": _threads(),
    }


def _communicator(each: Watched) -> dict[str, Any]:
    recorder = each.recorder
    under_way, made, state = recorder.under_way, recorder.calls(), recorder.state
    calls = [_call(call) for call in made]
    if calls and (under_way or state == BROKEN):
        calls[-1]["state"] = UNDER_WAY if under_way else ENDED_MIDWAY
    return {
        "name": each.name,
        "ranks": each.ranks,
        "state": state,
        "waits for": [f"{pending.operation}: {pending.missing}" for pending, _ in [*each.waits]],
        "calls": calls,
        "messages": [
            {name: getattr(pending, name) for name in ("operation", "what", "elements", "dtype")}
            | {"begun": _of_clock(begun)}
            for pending, begun in [*recorder.messages]
        ],
    }


def _call(made: Made) -> dict[str, Any]:
    record = made.record
    return {
        "number": made.number,
        **{name: getattr(record, name) for name in ("operation", "description", "elements", "dtype")},
        "bytes": record.nbytes,
        "route": record.route,
        **_place(made.site),
        "seen": _of_clock(made.begun),
        "state": DONE,
    }


def _place(site: Site) -> dict[str, Any]:
    code, _ = site
    return {"file": code.co_filename, "line": line_of(site), "function": code.co_name}


def _of_clock(when: float) -> float:
    """A time of ``time.monotonic`` in seconds since 1970."""
    return time.time() - (time.monotonic() - when)


def _threads() -> list[dict[str, Any]]:
    """What each other thread of Python's does now, the innermost frame first."""
    frames, found = frames_now(), []
    for each in threading.enumerate():
        if each.ident in frames and each is not threading.current_thread():
            stack = reversed(traceback.extract_stack(frames[each.ident]))
            found.append({"name": each.name, "stack": [f"{f.filename}:{f.lineno} in {f.name}" for f in stack]})
    return found


# -- the same in the form that torchfrtrace reads ---------------------------------------------------------------------

_VERSION = "2.10"  # the version of the format that torch 2.13 writes
_BACKEND, _OTHER = "gloo", "split"
"""torchfrtrace refuses names of backends and of collectives that it does not know. mpicoll's description follows."""


def kept_by_all(calls: int) -> int:
    """The first call that all ranks of a communicator still have, if one rank has made so many ``calls``."""
    return max((calls - 1) // LENGTH * LENGTH - LENGTH, 0)


def recording(snapshot: dict[str, Any], since: dict[str, int]) -> dict[str, Any]:
    """What torchfrtrace reads of one rank. ``since`` has the first call of each communicator that is of interest.

    torchfrtrace takes a call for missing that one rank has forgotten and another has not."""
    entries: list[dict[str, Any]] = []
    groups = {}
    for each in snapshot["communicators"]:
        name = each["name"]
        groups[name] = {"name": name, "desc": "mpicoll", "ranks": str(each["ranks"])}
        entries += [_entry(each, call) for call in each["calls"] if call["number"] >= since.get(name, 0)]
    entries.sort(key=lambda entry: entry["time_created_ns"])
    return {"version": _VERSION, "pg_config": groups, "entries": entries}


def _entry(communicator: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    operation = call["operation"]
    table, elements = COLLECTIVES.get(operation), call["elements"]  # those of its longest array
    name = (table and table.torch) or _OTHER
    part = elements // len(communicator["ranks"])
    given = part if table is not None and table.gathers else elements
    gotten = part if table is not None and table.scatters else elements
    seen = int(call["seen"] * 1e9)
    return {
        "record_id": 0,  # where first records differ among ranks, torchfrtrace drops all that are older, of any group
        "pg_id": 0,
        "process_group": (communicator["name"], "mpicoll"),
        "collective_seq_id": call["number"],
        "p2p_seq_id": 0,
        "op_id": call["number"],
        "profiling_name": f"{_BACKEND}:{name} {call['description'].replace(':', '=')}",
        "time_created_ns": seen,
        "time_discovered_started_ns": seen,
        "time_discovered_completed_ns": None,
        "duration_ms": None,
        "input_sizes": [[given] if elements else []],
        "input_dtypes": [call["dtype"]],
        "output_sizes": [[gotten] if elements else []],
        "output_dtypes": [call["dtype"]],
        "state": "completed" if call["state"] == DONE else "started",
        "retired": call["state"] == DONE,
        "timeout_ms": 0,
        "is_p2p": False,
        "frames": [{"name": call["function"], "filename": call["file"], "line": call["line"]}],
    }


# -- files on demand --------------------------------------------------------------------------------------------------

SIGNAL = signal.SIGURG
"""Programs without a watcher ignore it: launchers, shells and others. So it may be sent to all processes of a Slurm
job. Python itself would call a handler only when the main thread comes out of MPI. The handler of faulthandler is
called at once. It writes some lines to a pipe, and the watcher's thread reads them."""
_SECONDS_TO_WRITE = 10.0
_SECONDS_OF_A_SIGNAL = 0.05  # how long a signal's lines may take to come


def when_asked(loop: asyncio.AbstractEventLoop, do: Callable[[], object]) -> None:
    """Have the loop ``do`` this when this process gets the signal. A handler that the program has set stays."""
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    coming: list[asyncio.TimerHandle] = []

    def comes() -> None:
        os.read(reading, 1 << 16)
        for earlier in coming:
            earlier.cancel()
        coming[:] = [loop.call_later(_SECONDS_OF_A_SIGNAL, do)]

    loop.add_reader(reading, comes)
    faulthandler.register(SIGNAL, writing, all_threads=False)


def answer(process: int, asked: float) -> Files | None:
    """What a process says of the files that it has written since then; None if it has written none. Raises OSError if
    its files may not be seen, and ArgumentError if it cannot be asked."""
    can_be_asked = False
    for file in linux.files_of(process):
        with suppress(OSError, ValueError):  # it closes files meanwhile, has said nothing, or says something just now
            if linux.is_called(str(file), _ANSWER):
                can_be_asked = True
                folder, failure, written = json.loads(file.read_text())
                if written >= asked:
                    return Files(folder, failure)
    if not can_be_asked:
        raise _refused(f"{process}, which has made none, or has MPICOLL_CHECK=off")
    return None


def ask_for_dump(pid: int) -> Path:
    """Ask the job of this process, which runs on this node, for its files. Returns the folder of the process's own."""
    asked = time.time()
    try:
        answer(pid, asked)
        os.kill(pid, SIGNAL)
        while time.time() - asked < _SECONDS_TO_WRITE:
            if (files := answer(pid, asked)) is not None:
                if files.failure:
                    raise _refused(f"{pid}, which cannot write its files ({files.failure})")
                return Path(files.folder)
            time.sleep(0.05)
    except OSError as e:
        raise _refused(f"{pid} ({e.strerror})") from e
    raise TimeoutError(f"doctor: --dump: process {pid} wrote nothing within {_SECONDS_TO_WRITE:g} s")


def ask_slurm_job(job: str) -> None:
    """Ask all ranks of a Slurm job that runs for their files, from any machine with Slurm's commands. The job's output
    says where they are. ``scancel`` reaches either what srun has started or what the job script has: ask both."""
    for options in ([], ["--full"]):
        command = ["scancel", *options, f"--signal={SIGNAL.name.removeprefix('SIG')}", job]
        try:
            said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            problem = said.stderr.strip() or (f"scancel ended with {said.returncode}" if said.returncode else "")
        except FileNotFoundError:
            problem = "there is no scancel here"
        if problem:
            expected = "a job of Slurm's that runs, on a machine where scancel can be called"
            raise ArgumentError("doctor", "--dump", expected, f"{job} ({problem})")


def _refused(given: str) -> ArgumentError:
    return ArgumentError("doctor", "--dump", "a rank's process, which has made a Communicator", given)
