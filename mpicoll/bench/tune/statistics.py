"""When a candidate is accepted: never by luck.

A candidate's speed-up is how many times as fast as the algorithm that would run otherwise it was. Within one launch
both take turns on the same buffers, so that what disturbs the machine disturbs both. From launch to launch the same
calls take different times: where buffers lie and on which cores ranks run is drawn anew. So a launch is one sample, and
as many calls as there may be in it are still one (Hunold and Carpen-Amarie, arXiv 1505.07734).

A launch measures each kind of memory pages on which arrays may lie. Programs use both. So a candidate must be faster on
one of them, and no slower on any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from statistics import fmean, stdev

__all__ = ["LAUNCHES", "LEAST", "Launches", "Speedups", "accepted", "best", "lower_bound", "mean", "promises", "worse"]

LEAST = 1.05
"""The lower bound of a speed-up must reach this, and the speed-up in the launch that confirms it, too."""
EVERYWHERE = 1.02
"""The lower bound must reach this on each kind of pages. 1 would do in the job that was measured, and be too little in
later ones and on other machines."""
LAUNCHES = 3
"""The fewest launches of which a bound is computed. One more must confirm it."""
_QUANTILES = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753),
    *(1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697),
)
"""Student's t, 95 %, one-sided, for 1 to 30 degrees of freedom. More have the last one, which is a little too large."""

Launches = Sequence[Sequence[float]]
"""A candidate's speed-up on each kind of pages, in each launch that measured it, in their order."""
Speedups = Mapping[str, Launches]
"""Those of each candidate."""


def worse(launches: Launches) -> list[float]:
    """The speed-up of each launch on the kind of pages where the candidate won less."""
    return [*map(min, launches)]


def mean(speedups: Sequence[float]) -> float:
    """The geometric mean: twice as fast and half as fast make 1."""
    return exp(fmean(map(log, speedups)))


def lower_bound(speedups: Sequence[float]) -> float:
    """What the speed-up exceeds with a confidence of 95 %, if the logarithms are normally distributed. 0 for less than
    two of them, which say nothing about how much they vary."""
    if len(speedups) < 2:
        return 0.0
    logs = [*map(log, speedups)]
    t = _QUANTILES[min(len(logs) - 1, len(_QUANTILES)) - 1]
    return exp(fmean(logs) - t * stdev(logs) / sqrt(len(logs)))


def accepted(launches: Launches) -> bool:
    """Whether the candidate is faster on a kind of pages, and not slower on any."""
    by_pages = [*zip(*launches, strict=True)]
    return any(map(_shown, by_pages)) and all(lower_bound(each) >= EVERYWHERE for each in by_pages)


def promises(launches: Launches) -> bool:
    """Whether it is so on average, and more launches may show it."""
    means = [*map(mean, zip(*launches, strict=True))]
    return max(means) >= LEAST and min(means) >= EVERYWHERE


def _shown(speedups: Sequence[float]) -> bool:
    """Whether all launches but the last show that it is faster, and the last one confirms it."""
    found, confirming = speedups[:-1], speedups[-1:]
    return len(found) >= LAUNCHES and lower_bound(found) >= LEAST and confirming[0] >= LEAST


def best(speedups: Speedups) -> str | None:
    """The fastest of the candidates that are accepted, on the pages where each won less; None if none is."""
    able = {name: mean(worse(each)) for name, each in speedups.items() if accepted(each)}
    return max(able, key=lambda name: able[name]) if able else None
