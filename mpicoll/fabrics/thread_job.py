"""A job whose ranks are threads of one process: which rank a thread is, which ranks run, and what the others wait for.

All ranks of a job share one lock. A rank that waits releases it, and wakes up whenever anything happens in the job. A
rank that fails breaks the job, and so do ranks that all wait for each other. After that every wait raises an error."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mpicoll.calls.settings import Settings
from mpicoll.errors import StateError
from mpicoll.fabrics.transports.transport import Region
from mpicoll.node.loaded import kernel
from mpicoll.supervise.sites import DaemonThread


@dataclass(eq=False)
class Message:
    """A message that was sent."""

    source: int
    tag: int
    content: Any


@dataclass(eq=False)
class Awaited:
    """A receive from any rank if ``source`` is None, with any tag if that is None. ``message`` has come, or None."""

    source: int | None
    tag: int | None
    message: Message | None = None

    def takes(self, message: Message) -> bool:
        return self.tag in (None, message.tag) and self.source in (None, message.source)


class Group:
    """What the ranks of one communicator share. ``members`` are their numbers in the one of which it is a subset."""

    def __init__(self, members: tuple[int, ...] = ()) -> None:
        self.members = members
        self.made: set[int] = set()  # the members that have made their part of the subset
        self.mailboxes: defaultdict[int, list[Message]] = defaultdict(list)
        """By destination, the messages that no receive has taken yet."""
        self.awaited: defaultdict[int, list[Awaited]] = defaultdict(list)
        """By destination, the receives that wait for their message."""
        self.posted: defaultdict[tuple[int, int], deque[tuple[str, Region]]] = defaultdict(deque)
        """By source and destination, the memory that a collective lets the destination read, and what it is."""
        self.meetings: defaultdict[int, dict[int, tuple[str, Any]]] = defaultdict(dict)
        """By turn, what each rank that has come brings to the meeting: its operation, and its value."""
        self.met: Counter[int] = Counter()  # by rank, the number of meetings to which it has come
        self.subsets: defaultdict[frozenset[int], list[Group]] = defaultdict(list)
        """By its ranks, the subsets that some of them have made, and others have not yet."""


class Here(threading.local):
    """What the current thread is in a job."""

    seat: Seat | None = None
    """The seat of the rank that the thread is, or that it works for; None where it is in no job."""
    is_rank = False  # whether the thread is the rank itself


here = Here()  # the current thread


class Helper(DaemonThread):
    """A thread of mpicoll's that carries out calls for the rank whose thread makes it."""

    def __init__(self, serve: Callable[[Helper], None]) -> None:
        super().__init__(serve, "mpicoll", [self])
        self._seat = here.seat
        self._counting = threading.Lock() if self._seat is None else self._seat.job.changed
        if self._seat is not None:
            self._seat.job.helpers.append(self)

    def run(self) -> None:
        here.seat, here.is_rank = self._seat, False
        super().run()

    def hand_in(self) -> None:
        """Say that it gets a call."""
        with self._counting:
            self.tasks += 1

    def complete(self) -> None:
        """Say that it has no longer to carry one out."""
        with self._counting:
            self.tasks -= 1
            if self._seat is not None:
                self._seat.job.happened()


class Job:
    """The ranks of a job, and what they wait for."""

    def __init__(self, size: int) -> None:
        self.size, self.world = size, Group()
        self.settings = replace(Settings.of_environment(), dump="", trace="")  # nobody watches threads
        self.changed = threading.Condition()
        self.broken: str | None = None  # why no rank can wait for anything any more; None while the job is sound
        self.helpers: list[Helper] = []  # the threads of mpicoll's that carry out calls for ranks
        self._running: set[int] = set()  # the ranks that have not ended
        self._waits: dict[object, str] = {}  # what ranks wait for, and threads that carry out calls for them
        self._known = set(threading.enumerate())
        """The ranks' threads, and those that were there before the job. Any other thread may work for a rank."""

    def begin(self) -> None:
        """Say that all ranks run from now on. Raises StateError where they run already, or have failed."""
        if self.broken:
            raise StateError(f"run: the ranks of this job cannot run any more: {self.broken}")
        if self._running:
            raise StateError("run: the ranks of this job are running already")
        self._running = {*range(self.size)}
        if kernel is not None:
            kernel.set_default_turn(None, True)

    def enter(self, seat: Seat) -> None:
        here.seat, here.is_rank = seat, True
        with self.changed:
            self._known.add(threading.current_thread())

    def leave(self) -> None:
        """Say that the calling thread ends as a rank."""
        assert here.seat is not None
        rank, here.seat = here.seat.rank, None
        with self.changed:
            self._running.remove(rank)
            self._check_progress()
            self.changed.notify_all()

    def break_off(self, why: str) -> None:
        """Make every wait raise an error, which says ``why``."""
        with self.changed:
            self.broken = self.broken or why
            self.changed.notify_all()

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until ``ready``, holding ``changed``. Raises StateError, with ``what`` it is, if that cannot come."""
        me = here.seat.rank if here.seat is not None and here.is_rank else threading.current_thread()
        while not ready():
            if self.broken is not None:
                raise StateError(f"{what}: {self.broken}")
            if here.seat is None and not self._running:
                raise StateError(f"{what}: no rank of this job runs now")
            self._waits[me] = what
            self._check_progress()
            if self.broken is None:
                self.changed.wait()
            self._waits.pop(me, None)

    def happened(self) -> None:
        """Wake all ranks that wait, so that each sees whether it can go on. The caller holds ``changed``."""
        self._waits.clear()
        self.changed.notify_all()

    def _check_progress(self) -> None:
        """Break the job if all ranks that have not ended wait, and all threads that have tasks of theirs, for they wait
        for each other. But other threads, which the ranks have started, may work for them: then go on waiting."""
        waiting = [*self._running, *(each for each in self.helpers if each.tasks and each.is_alive())]
        if not self._running or self.broken is not None or not self._waits.keys() >= {*waiting}:
            return
        if all(each in self._known or isinstance(each, DaemonThread) for each in threading.enumerate()):
            waits = sorted({self._waits[each] for each in waiting})
            self.broken = f"no rank that has not ended can go on: {'; '.join(waits)}"
            self.changed.notify_all()


class Seat:
    """The seat of one rank in a job, and what adapters such as mpicoll.torch keep for it between runs."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.kept: dict[str, Any] = {}
        self.at_end: list[Callable[[], None]] = []
        """What is done when the job is over. The last one that was added comes first."""

    def close(self) -> None:
        while self.at_end:
            self.at_end.pop()()
