"""An algorithm of your own: it is proved, and then listed."""

from __future__ import annotations

from mpicoll import algorithms
from mpicoll.algorithms import Algorithm
from mpicoll.analysis.proof.cases import cases, prove
from mpicoll.errors import ArgumentError, MpicollError, ScheduleError

__all__ = ["register"]

_NO_SCHEDULES = ("native", "exchange")
"""Names that ``algorithm=`` accepts although they are no schedules."""


def register(algorithm: Algorithm) -> None:
    """Make ``algorithm=`` accept an algorithm of your own, on every rank that registers it.

    It is proved first: for 2 to 8 ranks, from every root, and for several numbers of segments. Raises ScheduleError if
    a proof fails. The error names the first rank, step and block that are wrong. Raises ArgumentError for a name that
    exists already, and for an algorithm that declines all these numbers of ranks.
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
    except Exception as e:  # its own functions may raise anything, or return what cannot be iterated over
        what = f"{algorithm.collective} {algorithm.name}"
        raise ScheduleError(what, None, None, None, f"raises {type(e).__name__}: {e}") from e
    if max((len(proof.results) for proof in proved), default=0) < 2:
        expected = f"one that serves some of 2 to 8 ranks, to be proved ({algorithm.declines(8, 0)})"
        raise ArgumentError("register", "algorithm", expected, repr(algorithm.name))
    algorithms.add(algorithm)
