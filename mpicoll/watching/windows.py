"""The windows and files of communicators. What their ranks must call together counts among the communicator's calls.

A rank may also wait for others alone: until they have posted a window or completed their accesses to it, which is told
as a message is, and for a lock that another rank holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import Any

from mpi4py import MPI

from mpicoll.supervise.messages import Ends, Lock
from mpicoll.supervise.record import Pending
from mpicoll.supervise.watched import GIVES, TAKES, locks
from mpicoll.units import named as named_ranks
from mpicoll.watching.arguments import by_name
from mpicoll.watching.calls import around
from mpicoll.watching.communicators import CommunicatorCalls, communicators

Go = Callable[[], Any]  # calls MPI as the program has called it

_OPENERS = "Create", "Allocate", "Allocate_shared", "Create_dynamic", "Open"
_OF_FILES = re.compile(r"\w+_(all|ordered)(_begin|_end)?|Set_(view|size|atomicity)|Preallocate|Seek_shared|Sync|Close")
_EPOCHS = "Post", "Start", "Complete", "Wait", "Test", "Lock", "Lock_all", "Unlock", "Unlock_all"
_WATCHED = {MPI.Win: re.compile("|".join(["Fence", "Free", *_EPOCHS])), MPI.File: _OF_FILES}


class _Opened:
    """A window or a file, whose calls count among those of a communicator."""

    def __init__(self, calls: CommunicatorCalls) -> None:
        self.calls = calls
        number = calls.recorder.begun  # the same on all ranks
        self.name = f"{calls.watched.name if calls.watched else ''} {number}"
        self.tag = -1 - number  # what tells its epochs from those of other windows, and from messages
        self.started: list[int] = []  # the ranks that must have posted before this rank's accesses can be complete
        self.posted: list[int] = []
        """The ranks that may access this rank's memory, until this rank has waited for them."""

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


def is_exposed(looks: bool, besides: object) -> int:
    """Whether other ranks may access this one's memory while it does something else."""
    return (GIVES | TAKES) * any(each.posted for each in [*_opened.values()])


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
    if owner is MPI.Win and name in _EPOCHS:
        return _in_epoch(it, name, go, opened, by_name(real, args, named))
    return it.together(f"{owner.__name__}.{name}", go)


def _in_epoch(it: _Opened, name: str, go: Go, window: MPI.Win, given: dict[str, Any]) -> Any:
    """The result of a call that begins or ends an epoch of a window, without all ranks of its communicator."""
    rank: int | None = given.get("rank")
    if name in ("Start", "Complete"):
        it.started = _numbers(window, given) if name == "Start" else it.started
        return it.until(name, _came("Post", it.started), Ends(targets=it.started, target_tag=it.tag), go)
    if name == "Wait":
        ranks, it.posted = it.posted, []
        return it.until(name, _came("Complete", ranks), Ends(ranks, it.tag), go)
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
    found = go()
    if name == "Post" or (name == "Test" and found):
        it.posted = _numbers(window, given) if name == "Post" else []
    return found


def _numbers(window: MPI.Win, given: dict[str, Any]) -> list[int]:
    """The numbers that a group's ranks have in the window's communicator."""
    found, everyone, group = [], window.Get_group(), given.get("group")
    if isinstance(group, MPI.Group):
        found = [*group.Translate_ranks(None, everyone)]
    everyone.Free()
    return found


def _came(what: str, ranks: list[int]) -> str:
    return f"{what} came from {'one of ' if len(ranks) > 1 else ''}{named_ranks(ranks)}"


def functions() -> Iterator[tuple[type, str, object]]:
    for owner, watched in _WATCHED.items():
        for name in [*vars(owner)]:
            if name in _OPENERS:
                yield owner, name, classmethod(around(getattr(owner, name), _open))
            elif watched.fullmatch(name) and not name.startswith("I"):
                yield owner, name, around(getattr(owner, name), _use)
