"""The files of a process's last calls: JSON for people, and a pickle for ``torchfrtrace``, torch's tool (see
torch/distributed/flight_recorder in torch's wheel)."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.errors import ArgumentError
from mpicoll.machine.system import write_whole
from mpicoll.supervise.demand import Answer
from mpicoll.supervise.messages import Files
from mpicoll.supervise.record import BROKEN, DONE, ENDED_MIDWAY, LENGTH, UNDER_WAY, Made
from mpicoll.supervise.sites import Site, frames_now, line_of
from mpicoll.supervise.watched import Watched


class DumpWriter:
    """Writes the files of this process, which is ``rank`` of the job's world. ``given`` is the folder, or empty."""

    def __init__(self, rank: int, given: str, job: str, communicators: Callable[[], Iterable[Watched]]) -> None:
        self._rank, self._communicators, self._given = rank, communicators, given
        self._folder = checked_folder(given) if given else Path(tempfile.gettempdir(), _DEFAULT + job)
        self._answer = Answer()

    def write(self, why: str, since: dict[str, int]) -> Files:
        """Write the files, and say in which folder they are, or why they could not be written. ``since`` is the first
        call of each communicator that counts for torchfrtrace."""
        files = Files(str(self._folder), "")
        try:
            known = snapshot(self._rank, why, self._communicators())
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(self._folder / f"torch_rank_{self._rank}", pickle.dumps(recording(known, since)))
            write_whole(self._folder / f"rank{self._rank}.json", json.dumps(known, indent=1))
        except Exception as e:  # whatever it is, it must not hide what the files are for
            files = Files("", f"{self._folder}: {type(e).__name__}: {e}")
        if not self._given:
            remove_old(self._folder)
        self._answer.say(files)
        return files


# -- where files go. What cannot be written is refused before a job has begun -----------------------------------------


_DEFAULT = "mpicoll-calls-"
"""How the names of folders begin that nobody has named. The processes of a job on one node have the same."""

_KEPT = 20
_SECONDS_TO_KEEP = 3600.0
"""Folders of jobs that nobody has named: so many are kept, and all that are not so old."""


def remove_old(folder: Path) -> None:
    """Remove the oldest of this user's folders that lie beside this one, which nobody has named. Others do it, too."""
    found = []
    with suppress(OSError), os.scandir(folder.parent) as entries:
        for entry in entries:
            with suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                named = re.fullmatch(_DEFAULT + "[0-9a-f]{8}", entry.name)
                if named and entry.is_dir(follow_symlinks=False) and stat.st_uid == os.getuid():
                    found.append((stat.st_mtime, entry.path))
    for written, path in sorted(found, reverse=True)[_KEPT:]:
        if time.time() - written > _SECONDS_TO_KEEP:
            shutil.rmtree(path, ignore_errors=True)


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
    """The file of ranks of which this is the first, if it is not rank 0."""
    return file.with_stem(f"{file.stem}-from-rank-{first}") if first else file


def checked_trace(given: str, first: int) -> Path:
    """The file, which is not made yet. Raises ArgumentError unless it can be written.

    ``first`` is the first of the ranks that it is about. Ranks that share no communicator with rank 0 have a file of
    their own."""
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
    return {
        "name": each.name,
        "ranks": each.ranks,
        "state": state,
        "waits for": [f"{pending.operation}: {pending.missing}" for pending, _ in [*each.waits]],
        "calls": calls,
        "messages": [
            {
                "operation": pending.operation,
                "what": pending.what,
                "elements": pending.elements,
                "dtype": pending.dtype,
                "begun": _of_clock(begun),
            }
            for pending, begun in [*recorder.messages]
        ],
        "queued": [
            {"operation": operation, **_place(site), "handed in": _of_clock(when)}
            for operation, site, when in [*recorder.queued]
        ],
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


def _place(site: Site) -> dict[str, Any]:
    code, _ = site
    return {"file": code.co_filename, "line": line_of(site), "function": code.co_name}


def _of_clock(when: float) -> float:
    """A time of ``time.monotonic`` in seconds since 1970."""
    return time.time() - (time.monotonic() - when)


def _threads() -> list[dict[str, Any]]:
    """What each other thread of Python's does now, the innermost frame first."""
    frames, me = frames_now(), threading.current_thread()
    others = [each for each in threading.enumerate() if each.ident in frames and each is not me]
    stacks = [(each.name, reversed(traceback.extract_stack(frames[each.ident or 0]))) for each in others]
    return [
        {"name": name, "stack": [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in stack]}
        for name, stack in stacks
    ]


# -- the same in the form that torchfrtrace reads ---------------------------------------------------------------------

_VERSION = "2.10"
"""The version of the format that torch 2.13 writes."""
_DESCRIPTION = "mpicoll"
"""What is said of each group."""
_BACKEND = "gloo"
"""torchfrtrace refuses names of backends that it does not know."""

_OTHER = "split"
"""It also knows a list of collectives only. An operation that is not among them takes this name, and mpicoll's own
description follows."""


def kept_by_all(calls: int) -> int:
    """The first call that all ranks of a communicator still have, if one rank has made so many ``calls``."""
    return max((calls - 1) // LENGTH * LENGTH - LENGTH, 0)


def recording(snapshot: dict[str, Any], since: dict[str, int]) -> dict[str, Any]:
    """What torchfrtrace reads of one rank. ``since`` has the first call of each communicator that is of interest.

    torchfrtrace takes a call for missing that one rank has forgotten and another has not."""
    entries = [
        _entry(communicator, call)
        for communicator in snapshot["communicators"]
        for call in communicator["calls"]
        if call["number"] >= since.get(communicator["name"], 0)
    ]
    groups = {each["name"]: each["ranks"] for each in snapshot["communicators"]}
    return {
        "version": _VERSION,
        "pg_config": {name: {"name": name, "desc": _DESCRIPTION, "ranks": str(r)} for name, r in groups.items()},
        "entries": sorted(entries, key=lambda entry: entry["time_created_ns"]),
    }


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
        "process_group": (communicator["name"], _DESCRIPTION),
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
