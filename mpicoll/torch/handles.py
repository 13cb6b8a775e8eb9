"""mpicoll's Works as torch's.

C++ (functional collectives, DDP's reducer, Join) may keep a Work for longer than Python does. A class of Python's that
is derived from torch's Work would lose its Python half then. torch's PythonCallbackWork would not: it waits by calling
a function, raises what that raises, and has a future of its own. So C++ gets one of those for each Work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any

import torch

from mpicoll.torch.private import CallbackWork, work_of_future
from mpicoll.torch.work import CollectiveWork, Complete, Work, seconds_of


def _finished() -> Any:
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result([])
    return work_of_future(future)


FINISHED = _finished()
"""What every synchronous call returns. It is all C++, so to wait for it costs the least."""


def in_future(work: CollectiveWork) -> Any:
    """A Work for C++ that asks for its future, and goes on when its streams have come to that. A Handle's future knows
    no streams."""
    return work_of_future(work.get_future())


class Handle(CallbackWork):  # type: ignore[misc]
    """A Work of mpicoll's as one of torch's. Python's questions go to mpicoll's Work.

    Python's future of a collective and C++'s complete even if nobody waits.
    """

    def __init__(self, ours: Work) -> None:
        self._ours = ours
        if isinstance(ours, CollectiveWork):
            self._complete_with(ours)
        elif isinstance(ours, Complete):
            CallbackWork.__init__(self, _is_over)
            CallbackWork.get_future(self).set_result(ours.tensors)
        else:
            CallbackWork.__init__(self, lambda _: ours.wait())

    def _complete_with(self, ours: CollectiveWork) -> None:
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
        future = CallbackWork.get_future(self)
        ours.when_complete(complete)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return self._ours.wait(timeout)


def _is_over(_: timedelta) -> bool:
    return True


def _asked(name: str) -> Callable[[Handle], Any]:
    return lambda self: getattr(self._ours, name)()


for _name in ("is_completed", "is_success", "exception", "synchronize", "get_future", "result", "source_rank"):
    setattr(Handle, _name, _asked(_name))
Handle._source_rank = Handle.source_rank


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
