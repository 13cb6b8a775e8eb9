"""A program's own algorithm: it is proved, and then listed."""

from __future__ import annotations

from mpicoll import algorithms
from mpicoll.algorithms import Algorithm
from mpicoll.analysis.proof.cases import cases, prove
from mpicoll.errors import ArgumentError, MpicollError, ScheduleError

__all__ = ["register"]

_NO_SCHEDULES = ("native", "exchange")
"""Names that ``algorithm=`` takes for what is no schedule."""


def register(algorithm: Algorithm) -> None:
    """Let ``algorithm=`` take an algorithm of your own, on every rank that registers it.

    It is proved first: among 2 to 8 ranks, from every root, for several segmentations. Raises ScheduleError, which
    names the first offending rank, step and block, where a proof fails; ArgumentError for a name that is taken, and
    for an algorithm that declines all these.
    """
    if not isinstance(algorithm, Algorithm):
        raise ArgumentError("register", "algorithm", "an Algorithm", repr(algorithm))
    if algorithm.name in _NO_SCHEDULES or algorithms.find(algorithm.collective, algorithm.name):
        expected = f"a name that {algorithm.collective} does not have yet"
        raise ArgumentError("register", "algorithm", expected, repr(algorithm.name))
    try:
        proved = [prove(algorithm, *case) for case in cases(algorithm, range(1, 9))]
    except MpicollError:
        raise
    except Exception as e:  # whatever its own functions raise, or cannot be iterated over
        what = f"{algorithm.collective} {algorithm.name}"
        raise ScheduleError(what, None, None, None, f"raises {type(e).__name__}: {e}") from e
    if max((len(proof.results) for proof in proved), default=0) < 2:
        expected = f"one that serves some of 2 to 8 ranks, to be proved ({algorithm.declines(8, 0)})"
        raise ArgumentError("register", "algorithm", expected, repr(algorithm.name))
    algorithms.add(algorithm)
