"""Looking for something again and again, until it is there or time is up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

YIELDS = 400  # looks between which other programs may have the core. After these, the rank sleeps between two looks.
PAUSE = 5e-5
"""Seconds. A rank sleeps for a tenth of the time that it has waited so far, but not longer than this: an MPI may move
data only while a rank looks, so that longer sleeps would slow long messages."""
TURN = 1e-3
"""Seconds. A rank that yields for longer has waited for the turn of a program that computes, and the next yield would
take as long. A rank that wakes up is given the core at once."""
WAITS, FEW = 100, 2  # after such a turn, so many waits sleep after a few looks


class Backoff:
    """Waits a little between two looks, for up to ``seconds`` together. In long waits it calls ``meanwhile``."""

    _soon = 0  # how many waits from now on sleep soon

    def __init__(self, seconds: float, meanwhile: Callable[[], object] | None = None) -> None:
        self._meanwhile = meanwhile
        self._since = time.monotonic()
        self._deadline = self._since + seconds
        self._looks = 0
        if Backoff._soon:
            Backoff._soon -= 1
            self._looks = YIELDS - FEW

    def wait(self) -> bool:
        """Wait a little before the next look. False if time is up."""
        self._looks += 1
        if self._looks <= YIELDS:
            before = time.monotonic()
            os.sched_yield()
            if time.monotonic() - before > TURN:
                self._looks, Backoff._soon = YIELDS, WAITS
            return True
        now = time.monotonic()
        if now > self._deadline:
            return False
        if self._meanwhile is not None:
            self._meanwhile()
        time.sleep(min(PAUSE, (now - self._since) / 10))
        return True
