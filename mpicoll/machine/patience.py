"""Looking for something again and again, until it is there or time is up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

__all__ = ["Patience"]

YIELDS = 400
"""Looks between which other programs may have the core. After these, the rank sleeps between two looks."""
PAUSE = 5e-5
"""Seconds of sleep. An MPI may move data only while a rank looks, so that a longer sleep would slow long messages."""


class Patience:
    """Waits a little between two looks, for up to ``seconds`` together. Where it takes longer, it calls ``meanwhile``,
    too, which may raise."""

    def __init__(self, seconds: float, meanwhile: Callable[[], object] | None = None) -> None:
        self._meanwhile = meanwhile
        self._deadline = time.monotonic() + seconds
        self._looks = 0

    def lasts(self) -> bool:
        """Wait a little before the next look. False if time is up."""
        self._looks += 1
        if self._looks <= YIELDS:
            os.sched_yield()
            return True
        if time.monotonic() > self._deadline:
            return False
        if self._meanwhile is not None:
            self._meanwhile()
        time.sleep(PAUSE)
        return True
