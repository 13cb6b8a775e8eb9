"""The windows and files of communicators. What their ranks must call together counts among the communicator's calls.

A rank may also wait for others alone: until they have posted a window or completed their accesses to it, which is told
as a message is, and for a lock that another rank holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial, wraps
from time import monotonic
from typing import Any

from mpi4py import MPI

from mpicoll.supervise.messages import Lock
from mpicoll.supervise.record import Ends, Pending
from mpicoll.supervise.watched import locks
from mpicoll.units import named as named_ranks
from mpicoll.watching.arguments import by_name, parameters_of
from mpicoll.watching.communicators import CommunicatorCalls, communicators

Go = Callable[[], Any]
"""Calls MPI as the program has called it."""

_OPENERS = "Create", "Allocate", "Allocate_shared", "Create_dynamic", "Open"
_ENDERS = "Free", "Close"
_OF_FILES = re.compile(r"\w+_(all|ordered)(_begin|_end)?|Set_(view|size|atomicity)|Preallocate|Seek_shared|Sync|Close")
_COLLECTIVES = {MPI.Win: re.compile("Fence|Free"), MPI.File: _OF_FILES}


class _Opened:
    """A window or a file, whose calls count among those of a communicator."""

    def __init__(self, calls: CommunicatorCalls) -> None:
        self.calls = calls
        number = calls.recorder.begun  # the same on all ranks
        self.name = f"{calls.watched.name if calls.watched else ''} {number}"
        self.tag = -1 - number
        """What tells its epochs from those of other windows, and from messages."""
        self.started: list[int] = []
        """The ranks that must have posted before this rank's accesses can be complete."""
        self.posted: list[int] = []
        """The ranks that may access this rank's memory, until this rank has waited for them."""

    def together(self, name: str, go: Go) -> Any:
        """The result of a collective. One may fail on one rank, as where a file is not there, and all ranks go on."""
        recorder = self.calls.begin(self.calls.record(name, "meeting", None, None, None))
        try:
            return go()
        finally:
            if recorder is not None:
                recorder.under_way = False

    def until(self, name: str, what: str, ends: Ends, go: Go) -> Any:
        """The result of a call that returns when this has happened."""
        begun = Pending(f"Win.{name}", what, 0, "", f"no {what}", ends), monotonic()
        self.calls.waits.append(begun)
        try:
            return go()
        finally:
            self.calls.waits.remove(begun)


_opened: dict[tuple[type, int], _Opened] = {}
"""By the type and the handle of a window or a file."""


def is_exposed(looks: bool, besides: object) -> bool:
    """Whether other ranks may access this one's memory while it does something else."""
    return any(each.posted for each in [*_opened.values()])


def _opener(owner: type, name: str, real: Any) -> Any:
    parameters = parameters_of(real)

    @wraps(real)
    def open_(cls: type, *args: Any, **named: Any) -> Any:
        comm = by_name(parameters, args, named).get("comm")
        calls = communicators.get(comm.handle) if isinstance(comm, MPI.Comm) else None
        if calls is None:
            return real(*args, **named)
        opened = _Opened(calls)
        found = opened.together(f"{owner.__name__}.{name}", partial(real, *args, **named))
        _opened[owner, found.handle] = opened
        return found

    return classmethod(open_)


def _collective(owner: type, name: str, real: Any) -> Callable[..., Any]:
    @wraps(real)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        table = _opened.pop if name in _ENDERS else _opened.get
        it, go = table((owner, self.handle), None), partial(real, self, *args, **named)
        return go() if it is None else it.together(f"{owner.__name__}.{name}", go)

    return call


# -- epochs of windows ------------------------------------------------------------------------------------------------


def _numbers(window: MPI.Win, given: dict[str, Any]) -> list[int]:
    """The numbers that a group's ranks have in the window's communicator."""
    group = given.get("group")
    if not isinstance(group, MPI.Group):
        return []
    everyone = window.Get_group()
    found = group.Translate_ranks(None, everyone)
    everyone.Free()
    return [*found]


def _came(what: str, ranks: list[int]) -> str:
    return f"{what} came from {'one of ' if len(ranks) > 1 else ''}{named_ranks(ranks)}"


def _post(it: _Opened, go: Go, window: MPI.Win, given: dict[str, Any]) -> Any:
    go()
    it.posted = _numbers(window, given)


def _start(it: _Opened, go: Go, window: MPI.Win, given: dict[str, Any]) -> Any:
    it.started = _numbers(window, given)
    it.until("Start", _came("Post", it.started), Ends(targets=it.started, target_tag=it.tag), go)


def _complete(it: _Opened, go: Go, window: MPI.Win, given: dict[str, Any]) -> Any:
    it.until("Complete", _came("Post", it.started), Ends(targets=it.started, target_tag=it.tag), go)


def _wait(it: _Opened, go: Go, window: MPI.Win, given: dict[str, Any]) -> Any:
    ranks, it.posted = it.posted, []
    return it.until("Wait", _came("Complete", ranks), Ends(ranks, it.tag), go)


def _test(it: _Opened, go: Go, window: MPI.Win, given: dict[str, Any]) -> Any:
    if found := go():
        it.posted = []
    return found


def _lock(it: _Opened, go: Go, window: MPI.Win, given: dict[str, Any]) -> Any:
    rank = given.get("rank")
    if (given.get("assertion") or 0) & MPI.MODE_NOCHECK or (rank is not None and rank not in it.calls.others):
        return go()  # it waits for nobody, or MPI refuses it
    exclusive = rank is not None and given.get("lock_type") != MPI.LOCK_SHARED
    lock = Lock(it.name, rank, exclusive)
    of = "all ranks' windows" if rank is None else f"the window of rank {it.calls.ranks[rank]}"
    found = it.until("Lock_all" if rank is None else "Lock", f"lock of {of} was granted", Ends(lock=lock), go)
    locks.append(lock)
    return found


def _unlock(it: _Opened, go: Go, window: MPI.Win, given: dict[str, Any]) -> Any:
    locks[:] = [each for each in locks if (each.window, each.rank) != (it.name, given.get("rank"))]
    return go()


_EPOCHS = {
    "Post": _post, "Start": _start, "Complete": _complete, "Wait": _wait, "Test": _test,
    "Lock": _lock, "Lock_all": _lock, "Unlock": _unlock, "Unlock_all": _unlock,
}  # fmt: skip


def _epoch(name: str, real: Any) -> Callable[..., Any]:
    """What begins or ends an epoch of a window, without all ranks of its communicator."""
    parameters, do = parameters_of(real), _EPOCHS[name]

    @wraps(real)
    def call(self: MPI.Win, *args: Any, **named: Any) -> Any:
        it, go = _opened.get((MPI.Win, self.handle)), partial(real, self, *args, **named)
        return go() if it is None else do(it, go, self, by_name(parameters, args, named))

    return call


def functions() -> Iterator[tuple[type, str, object]]:
    """The methods that get a function around them: their types, their names, and these functions."""
    for owner, collectives in _COLLECTIVES.items():
        for name in [*vars(owner)]:
            real = getattr(owner, name)
            if name in _OPENERS:
                yield owner, name, _opener(owner, name, real)
            elif collectives.fullmatch(name) and not name.startswith("I"):
                yield owner, name, _collective(owner, name, real)
            elif owner is MPI.Win and name in _EPOCHS:
                yield owner, name, _epoch(name, real)
