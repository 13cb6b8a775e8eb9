"""Our Works as torch's.

C++ (functional collectives, DDP's reducer, Join) may keep a Work longer than Python does, and the half of a Work that
Python has derived is lost then. So what C++ sees of one is torch's PythonCallbackWork, which needs none: it waits by a
callback, raises what that raises, and has a future of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from threading import get_ident
from time import monotonic
from typing import Any

import torch

from mpicoll.torch.work import CollectiveWork, MessageWork, Work

__all__ = ["Handle", "finished", "handle_of"]

_CallbackWork: Any = torch._C._distributed_c10d.PythonCallbackWork


def finished(result: Sequence[torch.Tensor] = ()) -> Any:
    """A Work that is complete and belongs to C++ alone, as quick to wait for as can be."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(list(result))
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]


class Handle(_CallbackWork):  # type: ignore[misc]
    """A Work of ours as torch's. What Python asks is answered by ours."""

    def __init__(self, ours: Work) -> None:
        super().__init__(lambda _: ours.wait())
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
    """A message's."""

    _ours: MessageWork

    def source_rank(self) -> int:
        return self._ours.source_rank()

    _source_rank = source_rank


class CollectiveHandle(Handle):
    """A collective's. Its futures, Python's and C++'s, complete though nobody waits."""

    _ours: CollectiveWork

    def __init__(self, ours: CollectiveWork) -> None:
        settling: dict[int, Exception] = {}  # the thread that hands a failure to C++: the program has not seen it then

        def wait(_: timedelta) -> bool:
            if settling and (failure := settling.get(get_ident())) is not None:
                raise failure
            ours.wait()
            future.wait()  # else C++ would complete it, with no result
            return True

        _CallbackWork.__init__(self, wait)
        self._ours = ours
        future = _CallbackWork.get_future(self)

        def settle(failure: Exception | None) -> None:
            if failure is None:
                future.set_result(ours.result())
            else:
                settling[get_ident()] = failure
            with suppress(Exception):  # it raises the failure, and makes C++'s future raise it
                _CallbackWork.wait(self)
            settling.clear()

        ours.when_complete(settle)

    def result(self) -> list[torch.Tensor]:
        return self._ours.result()


class Several(Work):
    """Several operations as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        deadline = None if timeout is None else monotonic() + timeout.total_seconds()
        for work in self._works:
            work.wait(None if deadline is None else timedelta(seconds=max(0.0, deadline - monotonic())))
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        return next(filter(None, (work.exception() for work in self._works)), None)


def handle_of(works: Sequence[Work]) -> Handle:
    """One handle for these operations."""
    if len(works) != 1:
        return Handle(Several(works))
    work = works[0]
    if isinstance(work, CollectiveWork):
        return CollectiveHandle(work)
    return MessageHandle(work) if isinstance(work, MessageWork) else Handle(work)
