"""What the manual's player shows: every algorithm among 2 to 8 ranks, round by round, with its predicted times.

The steps are those of the drawings: of the schedules that run, each proved before it is followed.
``mpicoll/analysis/drawing/page.py`` says what the data is.
"""

from __future__ import annotations

from typing import Any

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.analysis.drawing import page
from mpicoll.analysis.drawing.draw import pictured

RANKS = range(2, 9)


def script() -> str:
    """The script with the data of all algorithms."""
    return page.script(everything())


def everything() -> page.Pictures:
    """Each collective's algorithms, and each one's pictures by the number of ranks."""
    found: page.Pictures = {}
    for algorithm in algorithms():
        found.setdefault(algorithm.collective, {})[algorithm.name] = of_algorithm(algorithm)
    return found


def of_algorithm(algorithm: Algorithm) -> dict[int, dict[str, Any]]:
    """The algorithm's pictures by the number of ranks, from root 0, without what it declines."""
    return {size: _of(algorithm, size) for size in RANKS if not algorithm.declines(size, 0)}


def _of(algorithm: Algorithm, size: int) -> dict[str, Any]:
    picture = pictured(algorithm, size)
    if picture.fault is not None:
        raise picture.fault
    return page.steps(picture, algorithm, 0)
