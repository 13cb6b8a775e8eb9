"""What the manual's player shows: every algorithm among 2 to 8 ranks, round by round, with its predicted times.

The steps are those of the drawings: of the schedules that run, each proved before it is followed.
``mpicoll/analysis/drawing/page.py`` says what the data is.
"""

from __future__ import annotations

from collections.abc import Iterable

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.analysis.drawing import page
from mpicoll.analysis.drawing.draw import pictured


def script() -> str:
    """The script with the data of all algorithms."""
    return page.script(pictures(algorithms()))


def pictures(of: Iterable[Algorithm]) -> page.Pictures:
    """Each collective's algorithms, and each one's pictures by the number of ranks, from root 0."""
    found: page.Pictures = {}
    for algorithm in of:
        for size in (size for size in range(2, 9) if not algorithm.declines(size, 0)):
            picture = pictured(algorithm, size)
            if picture.fault is not None:
                raise picture.fault
            named = found.setdefault(algorithm.collective, {}).setdefault(algorithm.name, {})
            named[size] = page.steps(picture, algorithm, 0)
    return found
