"""What a process has done last, and what its threads do now, as plain values."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from typing import Any

from mpicoll.calls.record import Begun
from mpicoll.guard.recorder import BROKEN, DONE, ENDED_MIDWAY, UNDER_WAY, Made, Queued
from mpicoll.guard.sites import Site, frames_now, line_of
from mpicoll.guard.watch.watched import Watched


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
    loaded = {name: sys.modules.get(name) for name in ("mpicoll", "mpi4py", "numpy", "torch")}
    found |= {name: str(module.__version__) for name, module in loaded.items() if module is not None}
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        name, version = mpi.get_vendor()
        found["MPI"] = f"{name} {'.'.join(map(str, version))}"
    return found


def _communicator(each: Watched) -> dict[str, Any]:
    recorder = each.recorder
    under_way, made, state = recorder.under_way, recorder.calls(), recorder.state
    calls = [_call(call) for call in made]
    if calls and (under_way or state == BROKEN):
        calls[-1]["state"] = UNDER_WAY if under_way else ENDED_MIDWAY
    waits = [f"{pending.operation}: {pending.missing}" for pending, _ in [*each.waits]]
    messages = [_message(begun) for begun in [*recorder.messages]]
    return {
        "name": each.name,
        "ranks": each.ranks,
        "state": state,
        "waits for": waits,
        "calls": calls,
        "messages": messages,
        "queued": [_queued(each) for each in [*recorder.queued]],
    }


def _call(made: Made) -> dict[str, Any]:
    record = made.record
    return {
        "number": made.number,
        "operation": record.operation,
        "description": record.description,
        "elements": record.elements,
        "dtype": record.dtype,
        "bytes": record.nbytes,
        "route": record.route,
        **_place(made.site),
        "handed in": made.handed_in and _of_clock(made.handed_in),
        "seen": _of_clock(made.begun),
        "state": DONE,
    }


def _message(begun: Begun) -> dict[str, Any]:
    pending, when = begun
    return {
        "operation": pending.operation,
        "what": pending.what,
        "elements": pending.elements,
        "dtype": pending.dtype,
        "begun": _of_clock(when),
    }


def _queued(call: Queued) -> dict[str, Any]:
    operation, site, when = call
    return {"operation": operation, **_place(site), "handed in": _of_clock(when)}


def _place(site: Site) -> dict[str, Any]:
    code, _ = site
    return {"file": code.co_filename, "line": line_of(site), "function": code.co_name}


def _of_clock(when: float) -> float:
    """A time of ``time.monotonic`` in seconds since 1970."""
    return time.time() - (time.monotonic() - when)


def _threads() -> list[dict[str, Any]]:
    """What each other thread of Python's does now, the innermost frame first."""
    frames = frames_now()
    found = []
    for thread in threading.enumerate():
        if thread.ident in frames and thread is not threading.current_thread():
            stack = [
                f"{frame.filename}:{frame.lineno} in {frame.name}"
                for frame in reversed(traceback.extract_stack(frames[thread.ident]))
            ]
            found.append({"name": thread.name, "stack": stack})
    return found
