"""The thread that carries out the asynchronous collectives of one group."""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import torch

from mpicoll.errors import RankLost
from mpicoll.fabrics.thread_job import Helper
from mpicoll.guard import sites
from mpicoll.guard.recorder import Queued
from mpicoll.torch.groups.turns import Turn
from mpicoll.torch.groups.work import CollectiveWork

__all__ = ["Worker"]

_SECONDS_TO_END = 1.0
"""How long the end of the program waits for the thread of an aborted group."""


class Worker:
    """A thread with a queue of one group's collectives. It carries them out in the order in which they came."""

    def __init__(self, queued: deque[Queued]) -> None:
        self._queued = queued
        """What has not begun, for those who ask what this process does."""
        self._queue: queue.SimpleQueue[CollectiveWork | None] = queue.SimpleQueue()
        self._thread: Helper | None = None
        self.idle: Callable[[], bool] = lambda: True
        """Whether every collective is complete and all callbacks, which may call collectives, have returned.

        Every synchronous call asks this. So it is the method of the last collective's event itself.
        """
        self._served = threading.Event()
        """The event of the last collective, which ``idle`` asks."""
        self._under_way: CollectiveWork | None = None
        self._failed: list[CollectiveWork] = []

    def submit(
        self, operation: str, run: Callable[[], None], result: list[torch.Tensor], turn: Turn | None = None
    ) -> CollectiveWork:
        """Put ``run``, which writes the tensors of ``result``, into the queue. ``turn`` is its place on devices."""
        if self._thread is None:
            self._thread = Helper(self._serve)
            self._thread.start()
        work = CollectiveWork(run, result, turn)
        work.site, _ = sites.site_of(sys._getframe(1))
        work.handed_in = monotonic()
        if self.is_here():  # a callback calls: on every rank, its collective comes before all that is in the queue
            self._serve_one(work)
            self._let_go(work)
        else:
            self._thread.hand_in()
            self._queued.append((operation, work.site, work.handed_in))
            self._served = work.served
            self.idle = work.served.is_set  # a method of the event: it does not keep the tensors of the work alive
            self._queue.put(work)
        return work

    def drain(self) -> None:
        """Wait until all that was handed in is complete. Not for the worker's own thread."""
        self._served.wait()

    def finish(self) -> None:
        """Complete what is in the queue and end the thread. Raises the first failure that the program has not seen,
        unless that is a loss of ranks, which every call of the program raises."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        failed, self._failed = self._failed, []
        for work in failed:
            if work.failed_unseen and not isinstance(work.exception(), RankLost):
                work.wait()

    def abandon(self, why: Exception) -> None:
        """Make every collective that is not complete fail with ``why``.

        The thread ends when it comes out of the collective in which it is now. Nobody waits for that.
        """
        if (under_way := self._under_way) is not None:
            under_way.settle(why)
        with suppress(queue.Empty):
            while (work := self._queue.get_nowait()) is not None:
                work.settle(why)
        self._queued.clear()
        self._served.set()  # nobody waits for what is not carried out any more
        self._queue.put(None)

    def ended(self) -> bool:
        """Whether the thread has ended. This waits for it for a moment."""
        if self._thread is not None:
            self._thread.join(_SECONDS_TO_END)
        return self._thread is None or not self._thread.is_alive()

    def is_here(self) -> bool:
        """Whether the calling thread is the worker's."""
        return threading.current_thread() is self._thread

    def _serve_one(self, work: CollectiveWork) -> None:
        outer, self._under_way = self._under_way, work
        sites.here.site, sites.here.handed_in = work.site, work.handed_in
        work.carry_out()
        sites.here.site = sites.here.handed_in = None
        self._under_way = outer

    def _let_go(self, work: CollectiveWork) -> None:
        work.let_go()
        if work.failed_unseen:
            self._failed.append(work)

    def _serve(self, thread: Helper) -> None:
        before = None  # a collective whose end the devices may not have come to
        while (work := self._queue.get()) is not None:
            with suppress(IndexError):  # the group was aborted
                self._queued.popleft()
            self._serve_one(work)
            thread.complete()
            if before is not None:
                self._let_go(before)
                before = None
            if work.turn is None or self._queue.empty():
                self._let_go(work)
            else:  # meanwhile the next one begins
                before = work
            del work  # and its tensors, before the thread waits for the next one
        if before is not None:
            self._let_go(before)
