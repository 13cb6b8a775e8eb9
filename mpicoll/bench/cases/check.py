"""Checks a result: every element, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["wrong"]

Array = NDArray[Any]


def wrong(result: Array, periods: Sequence[Array], words: int = 1) -> int:
    """How many elements of ``result`` are wrong.

    ``result`` consists of blocks of equal length. Block i is right if it repeats ``periods[i]``. All arrays are flat
    and hold words; an element has ``words`` of them.
    """
    blocks = result.reshape(len(periods), -1)
    return sum(_wrong(block, period, words) for block, period in zip(blocks, periods, strict=True))


def _wrong(block: Array, period: Array, words: int) -> int:
    whole = block.size - block.size % period.size
    parts = (block[:whole].reshape(-1, period.size) != period, block[whole:] != period[: block.size - whole])
    if words > 1:
        parts = (parts[0].reshape(-1, words).any(axis=1), parts[1].reshape(-1, words).any(axis=1))
    return int(sum(np.count_nonzero(part) for part in parts))
