"""A job whose ranks are threads of one process: who runs, who waits for what, and which rank a thread is.

All ranks of a job share one lock. A rank that waits lets go of it, and is woken by whatever happens. A rank that fails,
or that waits for what can no longer come, breaks the job: every other rank's wait raises then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mpicoll.calls.rules import Rules, check, preferred, timeout
from mpicoll.errors import StateError
from mpicoll.fabrics.mailboxes import Group

__all__ = ["Job", "Seat", "here", "work_for"]


class Here(threading.local):
    """What the present thread is: ``seat`` is the place of the rank that it is, or works for, None if it is none."""

    seat: Seat | None = None
    is_rank = False


here = Here()
"""The present thread."""


def work_for(place: Seat | None) -> None:
    """The calling thread works for this rank from now on, without being it."""
    here.seat, here.is_rank = place, False


class Job:
    """The ranks of one run, and what they wait on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.world = Group()
        self.rules = Rules(preferred(), check=check(), timeout=timeout())
        self.changed = threading.Condition()
        self.broken: str | None = None
        """Why nothing can be waited for any more."""
        self._running: dict[int, str | None] = {}  # ranks that have not ended: what each waits for, None while it runs
        self._known = set(threading.enumerate())  # threads that are not the ranks' own, and, later, the ranks

    def begin(self) -> None:
        """All ranks run from now on. Raises StateError where they run already, or have failed."""
        if self.broken:
            raise StateError(f"run: the ranks of this job cannot run any more: {self.broken}")
        if self._running:
            raise StateError("run: the ranks of this job are running already")
        self._running = dict.fromkeys(range(self.size))

    def enter(self, place: Seat) -> None:
        """The calling thread is this rank from now on."""
        here.seat, here.is_rank = place, True
        with self.changed:
            self._known.add(threading.current_thread())

    def leave(self) -> None:
        """The calling thread has ended as a rank."""
        assert here.seat is not None
        rank, here.seat = here.seat.rank, None
        with self.changed:
            del self._running[rank]
            self._check_progress()
            self.changed.notify_all()

    def break_off(self, why: str) -> None:
        """Have every wait raise."""
        with self.changed:
            self.broken = self.broken or why
            self.changed.notify_all()

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait, holding ``changed``, until ``ready``. Raises StateError if that cannot happen any more."""
        me = here.seat if here.is_rank else None
        while not ready():
            if self.broken is not None:
                raise StateError(f"{what}: {self.broken}")
            if me is not None:
                self._running[me.rank] = what
                self._check_progress()
            if self.broken is None:
                self.changed.wait()
            if me is not None:
                self._running[me.rank] = None

    def happened(self) -> None:
        """Wake all who wait; ``changed`` is held. They look for themselves."""
        for rank in self._running:
            self._running[rank] = None
        self.changed.notify_all()

    def _check_progress(self) -> None:
        """If all ranks that have not ended wait, each will for ever: unless other threads work for them."""
        waits = list(self._running.values())
        if waits and None not in waits and self.broken is None and self._known.issuperset(threading.enumerate()):
            self.broken = f"every rank that has not ended waits, for ever: {'; '.join(sorted(set(map(str, waits))))}"
            self.changed.notify_all()


class Seat:
    """One rank of a job: its number, and what adapters keep for it from one run to the next."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.kept: dict[str, Any] = {}
        self.at_end: list[Callable[[], None]] = []
        """What an adapter wants done when the job is over."""

    def close(self) -> None:
        """The job is over."""
        while self.at_end:
            self.at_end.pop()()
