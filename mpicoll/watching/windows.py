"""The windows and files of communicators. What their ranks must call together counts among the communicator's calls.

A rank may also wait for others alone: until they have posted a window or completed their accesses to it, and for a lock
that another rank holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import Any

from mpi4py import MPI

from mpicoll.supervise.messages import Ends, Lock
from mpicoll.supervise.record import Pending
from mpicoll.supervise.watched import locks
from mpicoll.watching.arguments import by_name
from mpicoll.watching.calls import around
from mpicoll.watching.communicators import CommunicatorCalls, communicators

Go = Callable[[], Any]  # calls MPI as the program has called it

_OPENERS = "Create", "Allocate", "Allocate_shared", "Create_dynamic", "Open"
_OF_FILES = re.compile(r"\w+_(all|ordered)(_begin|_end)?|Set_(view|size|atomicity)|Preallocate|Seek_shared|Sync|Close")
_AWAITED = {"Start": "Post", "Complete": "Post", "Wait": "Complete"}
"""What other ranks must call before a call of an epoch returns."""
_LOCKS = "Lock", "Lock_all", "Unlock", "Unlock_all"
_WATCHED = {MPI.Win: re.compile("|".join(["Fence", "Free", *_AWAITED, *_LOCKS])), MPI.File: _OF_FILES}


class _Opened:
    """A window or a file, whose calls count among those of a communicator."""

    def __init__(self, calls: CommunicatorCalls) -> None:
        self.calls = calls
        self.name = f"{calls.watched.name if calls.watched else ''} {calls.recorder.begun}"  # the same on all ranks

    def together(self, name: str, go: Go) -> Any:
        """The result of a collective. One may fail on one rank, as where a file is not there, and all ranks go on."""
        recorder = self.calls.begin(self.calls.record(name, "meeting"))
        try:
            return go()
        finally:
            if recorder is not None:
                recorder.under_way = False

    def until(self, name: str, what: str, ends: Ends, go: Go) -> Any:
        """The result of a call that returns when this has happened."""
        return self.calls.until((Pending(f"Win.{name}", what, 0, "", f"no {what}", ends), monotonic()), go)


_opened: dict[tuple[type, int], _Opened] = {}  # by the type and the handle of a window or a file


def _open(real: Any, cls: type, *args: Any, **named: Any) -> Any:
    comm = by_name(real, args, named).get("comm")
    calls = communicators.get(comm.handle) if isinstance(comm, MPI.Comm) else None
    if calls is None:
        return real(*args, **named)
    owner, opened = MPI.Win if issubclass(cls, MPI.Win) else MPI.File, _Opened(calls)
    found = opened.together(f"{owner.__name__}.{real.__name__}", partial(real, *args, **named))
    _opened[owner, found.handle] = opened
    return found


def _use(real: Any, opened: Any, *args: Any, **named: Any) -> Any:
    name, owner = real.__name__, MPI.Win if isinstance(opened, MPI.Win) else MPI.File
    table = _opened.pop if name in ("Free", "Close") else _opened.get
    it, go = table((owner, opened.handle), None), partial(real, opened, *args, **named)
    if it is None:
        return go()
    if owner is MPI.Win and name in _AWAITED:
        return it.until(name, f"{_AWAITED[name]} came", Ends(), go)
    if owner is MPI.Win and name in _LOCKS:
        return _lock(it, name, go, by_name(real, args, named))
    return it.together(f"{owner.__name__}.{name}", go)


def _lock(it: _Opened, name: str, go: Go, given: dict[str, Any]) -> Any:
    """The result of a call that locks or unlocks a window of one rank, or of all ranks."""
    rank: int | None = given.get("rank")
    if name in ("Unlock", "Unlock_all"):
        locks[:] = [each for each in locks if (each.window, each.rank) != (it.name, rank)]
    takes = rank is None or rank in it.calls.others  # MPI refuses others
    if name in ("Lock", "Lock_all") and takes and not (given.get("assertion") or 0) & MPI.MODE_NOCHECK:
        shared = rank is None or given.get("lock_type") == MPI.LOCK_SHARED
        lock = Lock(it.name, None if rank is None else int(rank), not shared)
        of = "all ranks' windows" if rank is None else f"the window of rank {it.calls.ranks[rank]}"
        found = it.until(name, f"lock of {of} was granted", Ends(lock=lock), go)
        locks.append(lock)
        return found
    return go()


def functions() -> Iterator[tuple[type, str, object]]:
    for owner, watched in _WATCHED.items():
        for name in [*vars(owner)]:
            if name in _OPENERS:
                yield owner, name, classmethod(around(getattr(owner, name), _open))
            elif watched.fullmatch(name) and not name.startswith("I"):
                yield owner, name, around(getattr(owner, name), _use)
