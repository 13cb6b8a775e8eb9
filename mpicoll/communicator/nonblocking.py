"""Collectives that do not block: one method for each, whose Request is waited for. Types are in ``nonblocking.pyi``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType, SimpleNamespace
from typing import Any

from mpicoll.algorithms.collectives import METHODS
from mpicoll.communicator.base import CommunicatorBase
from mpicoll.communicator.collectives import Collectives
from mpicoll.communicator.engine.requests import Request
from mpicoll.communicator.repeated import repeated


class NonBlocking(CommunicatorBase):
    """The collectives of the Communicator that return at once.

    Each takes the arguments of the method without ``i``, and returns a :class:`Request`. No array of the call may be
    touched before the request is complete; its ``result`` is what the method would have returned. All ranks make the
    same calls in the same order, as of all collectives, and a call that does not block never meets one that does.

    Among ranks of one node, the kernel carries out the call. Otherwise it is MPI's own call, where MPI has one for
    the dtype and the operation and no algorithm is named. All else is carried out by a thread of this rank, or by who
    waits for it before the thread begins, on a communicator of its own. That needs MPI_THREAD_MULTIPLE. Without it,
    the call is complete when it returns."""


def _beginning(operation: str) -> Callable[..., Request]:
    """The method that begins a collective: it runs the code of the one that blocks, with another ``_collective``."""
    of = inspect.unwrap(vars(Collectives)[operation])
    run = FunctionType(of.__code__, of.__globals__, f"i{operation}", of.__defaults__)
    run.__qualname__ = f"NonBlocking.i{operation}"
    run.__doc__ = f"Start a{'n' * (operation[0] in 'ae')} :meth:`{operation}`."
    run.__module__ = __name__
    run.__annotations__ = {**of.__annotations__, "return": Request}

    def begin(self: NonBlocking, *args: Any, **named: Any) -> Request:
        begun: Request = run(SimpleNamespace(_collective=self._engine.begun), *args, **named)
        return begun

    return repeated(update_wrapper(begin, run))


for _operation in filter(vars(Collectives).__contains__, METHODS):
    setattr(NonBlocking, f"i{_operation}", _beginning(_operation))
