"""Looking for something again and again, until it is there or time is up."""

from __future__ import annotations

import os
import time

__all__ = ["Patience"]

YIELDS = 400
"""Looks between which other programs may have the core. After these, the rank sleeps between two looks."""
SHORTEST, LONGEST = 2e-5, 5e-3
"""Seconds of sleep. They double from look to look."""


class Patience:
    """Waits between two looks, first for moments and then for longer, up to ``seconds`` together."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._looks, self._pause = 0, SHORTEST

    def lasts(self) -> bool:
        """Wait a little before the next look. False if time is up."""
        self._looks += 1
        if self._looks <= YIELDS:
            os.sched_yield()
            return True
        if time.monotonic() > self._deadline:
            return False
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST)
        return True
