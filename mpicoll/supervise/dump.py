"""The file of a process's last calls. A process that gets SIGURG lets all processes of its job write theirs."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.errors import ArgumentError
from mpicoll.machine.system import write_whole
from mpicoll.supervise.messages import Files
from mpicoll.supervise.record import BROKEN, DONE, ENDED_MIDWAY, UNDER_WAY, Made
from mpicoll.supervise.sites import Site, frames_now, line_of
from mpicoll.supervise.watched import Watched

if TYPE_CHECKING:
    import asyncio


# -- where files go. What cannot be written is refused before a job has begun -----------------------------------------


def folder_of(given: str, job: str) -> Path:
    """The folder that the user has ``given``, or else one for the processes of this ``job`` on a node."""
    return checked_folder(given) if given else Path(tempfile.gettempdir(), f"mpicoll-calls-{job}")


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


def write(folder: Path, rank: int, communicators: Callable[[], Iterable[Watched]], why: str) -> Files:
    """Write the file of this process, which is ``rank`` of the job's world."""
    try:
        known = snapshot(rank, why, communicators())
        folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(folder / f"rank{rank}.json", json.dumps(known, indent=1))
    except Exception as e:  # whatever it is, it must not hide what the file is for
        return Files("", f"{folder}: {type(e).__name__}: {e}")
    return Files(str(folder), "")


def snapshot(rank: int, why: str, communicators: Iterable[Watched]) -> dict[str, Any]:
    """What this process has done, which is ``rank`` of the job's world. ``why`` says what the snapshot is for."""
    return {
        "why": why,
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "written": time.time(),
        "versions": _versions(),
        "communicators": [_communicator(each) for each in communicators],
        "threads": _threads(),
    }


def _versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("mpicoll", "mpi4py", "numpy", "torch"):
        if (module := sys.modules.get(name)) is not None:
            found[name] = str(module.__version__)
    if (mpi := sys.modules.get("mpi4py.MPI")) is not None:
        name, version = mpi.get_vendor()
        found["MPI"] = f"{name} {'.'.join(map(str, version))}"
    return found


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


# -- files on demand --------------------------------------------------------------------------------------------------

SIGNAL = signal.SIGURG
"""Programs without a watcher ignore it: launchers, shells and others. So it may be sent to all processes of a Slurm
job. Python itself would call a handler only when the main thread comes out of MPI. The handler of faulthandler is
called at once. It writes some lines to a pipe, and the watcher's thread reads them."""
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
