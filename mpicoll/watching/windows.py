"""The windows and files of communicators. What their ranks must call together counts among the communicator's calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from mpi4py import MPI

from mpicoll.watching.arguments import by_position, parameters_of
from mpicoll.watching.communicators import CommunicatorCalls, communicators

_OPENERS = "Create", "Allocate", "Allocate_shared", "Create_dynamic", "Open"
_ENDERS = "Free", "Close"
_OF_FILES = re.compile(r"\w+_(all|ordered)(_begin|_end)?|Set_(view|size|atomicity)|Preallocate|Seek_shared|Sync|Close")
_COLLECTIVES = {MPI.Win: re.compile("Fence|Free"), MPI.File: _OF_FILES}
_opened: dict[tuple[type, int], CommunicatorCalls] = {}
"""By the type and the handle of a window or a file."""


def _noted(calls: CommunicatorCalls, name: str, real: Any, *args: Any, **named: Any) -> Any:
    """The result of a collective. One may fail on one rank, as where a file is not there, and all ranks go on."""
    recorder = calls.begin(calls.record(name, "meeting", None, None, None))
    try:
        return real(*args, **named)
    finally:
        if recorder is not None:
            recorder.under_way = False


def _opener(owner: type, name: str, real: Any) -> Any:
    parameters = parameters_of(real)
    at_comm = parameters.index("comm")

    @wraps(real)
    def open_(cls: type, *args: Any, **named: Any) -> Any:
        comm = [*by_position(parameters, args, named), *[None] * len(parameters)][at_comm]
        calls = communicators.get(comm.handle) if isinstance(comm, MPI.Comm) else None
        if calls is None:
            return real(*args, **named)
        found = _noted(calls, f"{owner.__name__}.{name}", real, *args, **named)
        _opened[owner, found.handle] = calls
        return found

    return classmethod(open_)


def _collective(owner: type, name: str, real: Any) -> Callable[..., Any]:
    @wraps(real)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        table = _opened.pop if name in _ENDERS else _opened.get
        calls = table((owner, self.handle), None)
        if calls is None:
            return real(self, *args, **named)
        return _noted(calls, f"{owner.__name__}.{name}", real, self, *args, **named)

    return call


def functions() -> Iterator[tuple[type, str, object]]:
    """The methods that get a function around them: their types, their names, and these functions."""
    for owner, collectives in _COLLECTIVES.items():
        for name in [*vars(owner)]:
            if name in _OPENERS:
                yield owner, name, _opener(owner, name, getattr(owner, name))
            elif collectives.fullmatch(name) and not name.startswith("I"):
                yield owner, name, _collective(owner, name, getattr(owner, name))
