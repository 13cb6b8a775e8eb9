"""mpicoll's Works as torch's.

C++ (functional collectives, DDP's reducer, Join) may keep a Work for longer than Python does. A class of Python's that
is derived from torch's Work would lose its Python half then. torch's PythonCallbackWork would not: it waits by calling
a function, raises what that raises, and has a future of its own. So C++ gets one of those for each Work.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any

import torch

from mpicoll.torch.private import CallbackWork, work_of_future
from mpicoll.torch.work import CollectiveWork, MessageWork, Work, seconds_of


def finished(result: Sequence[torch.Tensor] = ()) -> Any:
    """A Work that is complete. It is all C++, so to wait for it costs the least."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(list(result))
    return work_of_future(future)


def in_future(work: CollectiveWork) -> Any:
    """A Work for C++ that asks for its future, and goes on when its streams have come to that. A Handle's future knows
    no streams."""
    return work_of_future(work.get_future())


class Handle(CallbackWork):  # type: ignore[misc]
    """A Work of mpicoll's as one of torch's. Python's questions go to mpicoll's Work."""

    def __init__(self, ours: Work) -> None:
        CallbackWork.__init__(self, lambda _: ours.wait())
        self._ours = ours

    def wait(self, timeout: timedelta | None = None) -> bool:
        return self._ours.wait(timeout)

    def is_completed(self) -> bool:
        return self._ours.is_completed()

    def is_success(self) -> bool:
        return self._ours.is_success()

    def exception(self) -> BaseException | None:
        return self._ours.exception()

    def synchronize(self) -> None:
        self._ours.synchronize()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._ours.get_future()


class MessageHandle(Handle):
    """The handle of a message."""

    _ours: MessageWork

    def source_rank(self) -> int:
        return self._ours.source_rank()

    _source_rank = source_rank


class CollectiveHandle(Handle):
    """The handle of a collective. Python's future and C++'s complete even if nobody waits."""

    _ours: CollectiveWork

    def __init__(self, ours: CollectiveWork) -> None:
        if ours.over and ours.error is None and ours.guard is None:  # nobody has to wait: this takes half the time
            CallbackWork.__init__(self, lambda _: True)
            self._ours = ours
            CallbackWork.get_future(self).set_result(ours.join())
            CallbackWork.wait(self)
            return

        def wait(_: timedelta) -> bool:
            ours.wait()
            future.wait()  # otherwise C++ might complete its future before it has a result
            return True

        def complete() -> None:
            if ours.error is None:
                future.set_result(ours.join())
            with suppress(Exception):  # the wait raises the failure, and stores it in C++'s future on the way
                CallbackWork.wait(self)

        CallbackWork.__init__(self, wait)
        self._ours = ours
        future = CallbackWork.get_future(self)
        ours.when_complete(complete)

    def result(self) -> list[torch.Tensor]:
        return self._ours.result()


class Several(Work):
    """Several operations as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        seconds = seconds_of(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        for work in self._works:
            work.wait(None if deadline is None else timedelta(seconds=max(0.0, deadline - monotonic())))
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next(filter(None, (work.exception() for work in self._works)), None)


def handle_of(work: Work) -> Handle:
    """The handle of an operation."""
    if isinstance(work, CollectiveWork):
        return CollectiveHandle(work)
    return MessageHandle(work) if isinstance(work, MessageWork) else Handle(work)
