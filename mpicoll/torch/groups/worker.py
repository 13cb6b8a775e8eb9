"""The asynchronous collectives of one group: who carries them out, and in which order.

A group has a thread for them, because they must complete though nobody waits. But to hand a short collective to another
thread takes several times as long as to carry it out. Most programs soon wait for it. So the thread leaves a short one
alone for a moment, and whoever waits for it carries it out.
"""

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
from mpicoll.fabrics.thread_job import Helper, here
from mpicoll.supervise import sites
from mpicoll.supervise.record import Queued
from mpicoll.torch.groups.turns import Turn
from mpicoll.torch.groups.work import CollectiveWork

SHORT = 64 << 10
"""Bytes of a tensor that takes about as long as it takes to hand it in."""
LINGER = 20
"""Naps without a collective, after which the thread sleeps until one comes. It takes long to wake."""
_SECONDS_TO_END = 1.0
"""How long the end of the program waits for the thread of an aborted group."""


class Worker:
    """One group's collectives that are pending, in the order in which they came, and the thread that serves them."""

    nap = 5e-4
    """Seconds for which the thread leaves a short collective alone."""

    def __init__(self, queued: deque[Queued]) -> None:
        self._queued = queued
        """What has not begun, for those who ask what this process does."""
        self._waiting: deque[CollectiveWork] = deque()
        """The same, with what is to be done."""
        self._begun = 0
        """How many have begun."""
        self._carries_out = threading.Lock()
        """Whoever has it carries collectives out: one thread at a time."""
        self._who = 0
        """The number of that thread; 0 if there is none."""
        self._thread: Helper | None = None
        self._calls: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
        """What wakes the thread. True: carry out what waits; False: look in a moment; None: end."""
        self._sleeps = True
        self._given_up = False
        """Whether nobody waits any more for what is pending."""
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
            return work
        self._thread.hand_in()
        if here.seat is None:
            work.worker = self
        self._queued.append((operation, work.site, work.handed_in))
        self._waiting.append(work)  # after that, because others look here first
        if self._is_left(work) or (result and max([each.nbytes for each in result]) > SHORT):
            self.hurry()
        elif self._sleeps:
            self._calls.put(False)
        return work

    def hurry(self) -> None:
        """Let the thread begin at once."""
        self._calls.put(True)

    def idle(self) -> bool:
        """Whether every collective is complete and all callbacks, which may call collectives, have returned."""
        return not (self._who or self._waiting)

    def carry_out(self, last: CollectiveWork | None = None) -> None:
        """Carry out in this thread what waits, up to ``last`` or all that is not left to the group's own thread."""
        before = None  # a collective whose end the devices may not have come to
        while not self._carries_out.acquire(timeout=1.0):
            if self._given_up:
                return
        self._who = threading.get_ident()
        thread = self._thread
        assert thread is not None
        ours = threading.current_thread() is thread
        try:
            while (work := self._next(last)) is not None:
                if not ours:  # the thread has it no more
                    thread.complete()
                try:
                    self._serve_one(work)
                finally:
                    if ours:
                        thread.complete()
                    if before is not None:
                        self._let_go(before)
                        before = None
                    if work.turn is None or not self._waiting:
                        self._let_go(work)
                    else:  # meanwhile the next one begins
                        before = work
                del work  # and its tensors
            if before is not None:
                self._let_go(before)
        finally:
            self._who = 0
            self._carries_out.release()

    def drain(self) -> None:
        """Wait until all that was handed in is complete. Not for a thread that carries out collectives."""
        self.carry_out()
        while not (self.idle() or self._given_up):
            work = next(iter([*self._waiting]), None)
            if work is not None:
                work.ends_within(None)
            self.carry_out()

    def finish(self) -> None:
        """Complete what is in the queue and end the thread. Raises the first failure that the program has not seen,
        unless that is a loss of ranks, which every call of the program raises."""
        if self._thread is not None:
            self.drain()
            self._calls.put(None)
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
        self._queued.clear()
        with suppress(IndexError):
            while True:
                self._waiting.popleft().settle(why)
        self._given_up = True
        self._calls.put(None)

    def ended(self) -> bool:
        """Whether the thread has ended. This waits for it for a moment."""
        if self._thread is not None:
            self._thread.join(_SECONDS_TO_END)
        return self._thread is None or not self._thread.is_alive()

    def is_here(self) -> bool:
        """Whether the calling thread carries out collectives now: a callback of theirs calls."""
        return self._who == threading.get_ident()

    def _is_left(self, work: CollectiveWork) -> bool:
        """Whether it is left to the group's own thread: nobody waits for devices, or in a job of threads for others."""
        return work.turn is not None or here.seat is not None

    def _next(self, last: CollectiveWork | None) -> CollectiveWork | None:
        """What comes next, which begins now. None if there is nothing before the end of ``last``."""
        if last is not None and last.over:
            return None
        try:
            if self._is_left(self._waiting[0]) and threading.current_thread() is not self._thread:
                return None
            self._queued.popleft()
            self._begun += 1
            return self._waiting.popleft()
        except IndexError:  # nothing waits, or the group was aborted
            return None

    def _serve_one(self, work: CollectiveWork) -> None:
        outer, self._under_way = self._under_way, work
        sites.here.site, sites.here.handed_in = work.site, work.handed_in
        try:
            work.carry_out()
        finally:
            sites.here.site = sites.here.handed_in = None
            self._under_way = outer

    def _let_go(self, work: CollectiveWork) -> None:
        work.let_go()
        if work.failed_unseen:
            self._failed.append(work)

    def _serve(self, thread: Helper) -> None:
        begun = quiet = 0
        while True:
            try:
                now = self._calls.get(timeout=None if self._sleeps else self.nap)
                self._sleeps = False
            except queue.Empty:
                now = bool(self._waiting) and self._begun == begun  # the oldest one has waited for a nap
                quiet = 0 if self._waiting or self._begun > begun else quiet + 1
            if now is None:
                return
            if now:
                self.carry_out()
            begun = self._begun
            if quiet == LINGER:
                quiet, self._sleeps = 0, True
                if self._waiting:  # it was handed in before anybody could see that
                    self._sleeps = False
