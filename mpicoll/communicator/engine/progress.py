"""Collectives that a thread of this rank carries out while the program goes on, in the order of the program.

They are those of torch's groups, and those that MPI has no non-blocking call for: dtypes and operations that it lacks,
named algorithms, ranks that are threads. They must complete though nobody waits. But to hand a short collective to
another thread takes several times as long as to carry it out, and most programs soon wait for it. So the thread leaves
a short one alone for a moment, and whoever waits for it carries it out."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from mpicoll.errors import RankLost, StateError
from mpicoll.fabrics.fabric import Transfer
from mpicoll.fabrics.thread_job import Helper, here
from mpicoll.launch import lifecycle
from mpicoll.launch.lifecycle import FORKED, is_forked
from mpicoll.supervise import sites, tape

SHORT = 256 << 10  # bytes of a collective that takes about as long as it takes to hand it in
LINGER = 20  # naps without a collective, after which the thread sleeps until one comes. It takes long to wake
_SECONDS_TO_END = 1.0  # how long the end of the program waits for the thread of an aborted group


class Submitted:
    """A collective that was handed in to a thread. ``run`` carries it out."""

    site: sites.Site | None = None  # where the program has handed it in
    handed_in: float | None = None  # when, in seconds of ``time.monotonic``
    thread: ProgressThread | None = None
    """The thread that it was handed in to, if whoever waits for it may carry it out."""
    has_begun = False  # whether it has begun before it was handed in: ``run`` waits for its end
    on_devices = False
    """Whether its memory is that of devices: then its host thread waits for nothing, and only the thread runs it."""
    over = False  # whether the collective is complete, but for what devices still have to do
    error: Exception | None = None
    heard = False  # whether the program knows what it raised, or somebody else tells it

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._unsettled = threading.Lock()

    def execute(self) -> None:
        """Run it in this thread. What it raises is kept for those who wait."""
        try:
            failure = failure_of(self._run)
        except BaseException:  # of a signal's handler, in the program's thread
            self.settle(StateError("wait: this collective ended midway"))
            raise
        self._run = nothing  # drop the arrays that it read
        self.settle(failure)

    def settle(self, failure: Exception | None) -> None:
        """Note how it ended. Only the first call counts."""
        if not self._unsettled.acquire(blocking=False):
            return
        self.error = failure
        try:
            self.ended()
        finally:
            self.over = True
            if (end := self.__dict__.get("_end")) is not None:
                end.set()

    def ended(self) -> None:
        """What is done at its end, before those who wait go on."""

    def let_go(self) -> None:
        """Drop the arrays that it read, when nothing reads them any more."""
        self._run = nothing

    def is_over(self) -> bool:
        """Whether it is over for the calling thread."""
        if not self.over and is_forked():  # the thread that carries it out is the parent's alone
            self.error = StateError(f"wait: this collective cannot be waited for: {FORKED}")
            return True
        return self.over

    def complete(self, seconds: float | None = None) -> bool:
        """Wait until it is over, but not longer than that. Carry it out in this thread, unless that may take too long
        or is the affair of devices. Whether it is over."""
        if self.is_over():
            return True
        if tape.active is not None and self.handed_in is not None:
            with tape.active.waiting(self.handed_in):
                return self._complete_or_wait(seconds)
        return self._complete_or_wait(seconds)

    def _complete_or_wait(self, seconds: float | None) -> bool:
        if self.thread is not None:
            if seconds is None and not self.on_devices:
                self.thread.execute(self)
            else:
                self.thread.hurry()
        return self.over or self.ends_within(seconds)

    def ends_within(self, seconds: float | None) -> bool:
        """Wait until another thread has carried it out, but not longer than that. Whether it is over."""
        if (seat := here.seat) is not None and seconds is None:
            with seat.job.changed:
                seat.job.wait_until(lambda: self.over, f"rank {seat.rank} waits for a call that it has begun")
            return True
        end: threading.Event = self.__dict__.setdefault("_end", threading.Event())  # as one step: others may wait, too
        return self.over or end.wait(seconds)


def failure_of(run: Callable[[], None]) -> Exception | None:
    try:
        run()
    except Exception as e:  # whoever waits gets it
        return e
    return None


def nothing() -> None:
    """In the place of a collective that is over."""


class ProgressThread:
    """The collectives of one communicator that are pending, and the thread that serves them."""

    nap = 5e-4  # seconds for which the thread leaves a short collective alone

    def __init__(self) -> None:
        self._waiting: deque[Submitted] = deque()  # what has not begun
        self._begun = 0
        self._carries_out = threading.Lock()  # whoever has it carries collectives out: one thread at a time
        self._who = 0  # the number of that thread; 0 if there is none
        self._thread: Helper | None = None
        self._wakes = threading.Lock()
        """Released to wake the thread. Python's ``queue.SimpleQueue`` was seen to wait for ever instead of a moment, on
        a busy machine with Python 3.11."""
        self._hurries = self._ends = False
        """Whether the thread is to carry out what waits at once, and whether it is to end."""
        self._sleeps = True
        self._given_up = False  # whether nobody waits any more for what is pending
        self._wakes.acquire()
        self._under_way: Submitted | None = None
        self._failed: list[Submitted] = []
        _all.add(self)

    def submit(self, work: Submitted, nbytes: int) -> None:
        """Put a collective of so many bytes into the queue."""
        if self._thread is None:
            self._ends = self._given_up
            self._thread = Helper(self._serve)
            self._thread.start()
        work.site, _ = sites.site_of(sys._getframe(1))
        work.handed_in = monotonic()
        if tape.active is not None:
            tape.active.hand_in(work.handed_in)
        if self.is_here():  # a callback calls: on every rank, its collective comes before all that is in the queue
            self._serve_one(work)
            self._let_go(work)
            return
        self._thread.hand_in()
        if here.seat is None:
            work.thread = self
        self._waiting.append(work)
        if self._is_left(work) or (nbytes > SHORT and not work.has_begun):  # the kernel goes on with what has begun
            self.hurry()
        elif self._sleeps:
            self._wake()

    def hurry(self) -> None:
        self._hurries = True
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # it was released already
            self._wakes.release()

    def idle(self) -> bool:
        """Whether every collective is complete and all callbacks, which may call collectives, have returned."""
        return not (self._who or self._waiting)

    def execute(self, last: Submitted | None = None) -> None:
        """Carry out in the calling thread what waits, up to ``last`` or all that is not left to the thread."""
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
                    if not (work.on_devices and self._waiting):
                        self._let_go(work)
                    else:  # meanwhile the next one begins
                        before = work
                del work  # and its arrays
            if before is not None:
                self._let_go(before)
        finally:
            self._who = 0
            self._carries_out.release()

    def drain(self) -> None:
        """Wait until all that was handed in is complete. Not for a thread that carries out collectives."""
        while not (self.idle() or self._given_up):
            self.execute()
            work = next(iter([*self._waiting]), None)
            if work is not None:
                work.ends_within(None)

    def finish(self) -> None:
        """Complete what is in the queue and end the thread. Raises the first failure that the program has not seen,
        unless that is a loss of ranks, which every call of the program raises."""
        if self._thread is not None:
            self.drain()
            self._ends = True
            self._wake()
            self._thread.join()
            self._thread = None
        failed, self._failed = self._failed, []
        for work in failed:
            if not work.heard and work.error is not None and not isinstance(work.error, RankLost):
                work.heard = True
                raise work.error

    def abandon(self, why: Exception) -> None:
        """Make every collective that is not complete fail with ``why``.

        The thread ends when it comes out of the collective in which it is now. Nobody waits for that."""
        if (under_way := self._under_way) is not None:
            under_way.settle(why)
        with suppress(IndexError):
            while True:
                self._waiting.popleft().settle(why)
        self._given_up = self._ends = True
        self._wake()

    def has_ended(self) -> bool:
        """Whether the thread has ended. This waits for it for a moment."""
        if self._thread is not None:
            self._thread.join(_SECONDS_TO_END)
        return self._thread is None or not self._thread.is_alive()

    def is_here(self) -> bool:
        """Whether the calling thread carries out collectives now: a callback of theirs calls."""
        return self._who == threading.get_ident()

    def _is_left(self, work: Submitted) -> bool:
        """Whether it is left to the thread: nobody waits for devices, or in a job of threads for others."""
        return work.on_devices or here.seat is not None

    def _next(self, last: Submitted | None) -> Submitted | None:
        """What comes next, which begins now. None if there is nothing before the end of ``last``."""
        if last is not None and last.over:
            return None
        try:
            if self._is_left(self._waiting[0]) and threading.current_thread() is not self._thread:
                return None
            work = self._waiting.popleft()
            self._begun += 1
            return work
        except IndexError:  # nothing waits, or the group was aborted
            return None

    def _serve_one(self, work: Submitted) -> None:
        outer, self._under_way = self._under_way, work
        sites.here.site, sites.here.handed_in = work.site, work.handed_in
        try:
            work.execute()
        finally:
            sites.here.site = sites.here.handed_in = None
            self._under_way = outer

    def _let_go(self, work: Submitted) -> None:
        work.let_go()
        if work.error is not None and not work.heard:
            self._failed.append(work)

    def _serve(self, thread: Helper) -> None:
        begun = quiet = 0
        while True:
            woken = self._wakes.acquire(timeout=-1 if self._sleeps else self.nap)
            if self._ends:
                return
            self._sleeps, now = False, self._hurries
            if now:
                self._hurries = False  # before it begins: whoever hurries it meanwhile is heard
            elif not woken:
                now = bool(self._waiting) and self._begun == begun  # the oldest one has waited for a nap
                quiet = 0 if self._waiting or self._begun > begun else quiet + 1
            if now:
                self.execute()
            begun = self._begun
            if quiet == LINGER:
                quiet, self._sleeps = 0, True
                if self._waiting:  # it was handed in before anybody could see that
                    self._sleeps = False


class OnThread(Submitted, Transfer):
    """A non-blocking collective of ``nbytes`` that the thread carries out by ``run``. It starts once."""

    heard = True  # its Request tells

    def __init__(self, thread: ProgressThread, run: Callable[[], None], nbytes: int) -> None:
        super().__init__(run)
        self._thread, self._nbytes = thread, nbytes

    def start(self) -> OnThread:
        self._thread.submit(self, self._nbytes)
        return self

    def wait(self, begun: OnThread) -> None:
        self.complete()
        if self.error is not None:
            raise self.error

    def test(self, begun: OnThread) -> bool:
        if self.over:
            self.wait(self)
        return self.over


_all: weakref.WeakSet[ProgressThread] = weakref.WeakSet()


def _complete_all() -> None:
    """At the end of the program or of MPI: no thread may be in a call of MPI's when that is finalised."""
    for thread in [*_all]:
        thread.drain()


lifecycle.add(lifecycle.Hook.COMPLETE_COLLECTIVES, _complete_all)
lifecycle.add(lifecycle.Hook.FORGET_THREADS, _all.clear)
