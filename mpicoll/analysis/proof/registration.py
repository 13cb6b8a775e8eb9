"""An algorithm of your own: it is proved, and then listed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from mpicoll import algorithms
from mpicoll.algorithms import Algorithm
from mpicoll.algorithms.steps import Place
from mpicoll.analysis.proof.cases import Case, cases, prove
from mpicoll.errors import ArgumentError, MpicollError, ScheduleError

_NO_SCHEDULES = ("native", "exchange", "node", "wide", "staged", "device", "ipc")
"""Names that ``algorithm=`` accepts although they are no schedules."""


MOST_RANKS = 64
"""Up to so many ranks, a call proves the algorithm before it runs: that takes up to some seconds. With more ranks, rank
0 warns that nobody has."""

_PROVES: ContextVar[bool] = ContextVar("mpicoll_register_proves", default=True)


@contextmanager
def unproved() -> Iterator[None]:
    """In the ``with`` block, ``register`` lists algorithms without a proof, so that a wrong one can be drawn."""
    token = _PROVES.set(False)
    try:
        yield
    finally:
        _PROVES.reset(token)


def register(algorithm: Algorithm) -> None:
    """Make ``algorithm=`` accept an algorithm of your own, on every rank that registers it.

    It is proved first: for 2 to 8 ranks, from every root, and for several numbers of segments. Raises ScheduleError if
    a proof fails. The error names the first rank, step and block that are wrong. Raises ArgumentError for a name that
    exists already, and for an algorithm that declines all these numbers of ranks.

    Among up to 64 ranks, the first call with another number of ranks or segments, or from another root, proves it for
    them, on every rank and before any data moves. With more ranks, that would take too long: the first call warns.
    """
    if not isinstance(algorithm, Algorithm):
        raise ArgumentError("register", "algorithm", "an Algorithm", repr(algorithm))
    if algorithm.name in _NO_SCHEDULES or algorithms.find(algorithm.collective, algorithm.name):
        expected = f"a name that {algorithm.collective} does not have yet"
        raise ArgumentError("register", "algorithm", expected, repr(algorithm.name))
    if not _PROVES.get():
        algorithms.add(algorithm)
        return
    proved = _Proved(algorithm)
    most = 0
    try:
        for case in cases(algorithm, range(1, 9)):
            proved.prove(case)
            most = case.size
    except ScheduleError as fault:
        raise fault.with_traceback(None) from fault.__cause__  # mpicoll's own frames say nothing to who wrote it
    if most < 2:
        expected = f"one that serves some of 2 to 8 ranks, to be proved ({algorithm.declines(8, 0)})"
        raise ArgumentError("register", "algorithm", expected, repr(algorithm.name))
    algorithms.add(algorithm, proved)


class _Proved:
    """The cases for which an algorithm is proved. It proves more when they are needed."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._known: set[Case] = set()
        self._lock = Lock()  # ranks may be threads: one of them proves for all

    def __call__(self, place: Place) -> None:
        case = Case(place.size, place.root, place.segments, place.nodes if self._algorithm.by_node else None)
        if case in self._known:
            return
        with self._lock:
            if case in self._known:
                return
            if case.size <= MOST_RANKS:
                self.prove(case)
                return
            self._known.add(case)
            if place.rank == 0:
                name = f"{self._algorithm.collective} {self._algorithm.name}"
                proof = f"`mpicoll verify {name} -n {case.size}`, called as own_algorithm.md says, proves it"
                warnings.warn(f"{name} was proved for 1 to 8 ranks only, not for {case.size}: {proof}", stacklevel=2)

    def prove(self, case: Case) -> None:
        """Raise ScheduleError unless the schedules are right."""
        try:
            prove(self._algorithm, *case)
            self._known.add(case)
        except MpicollError:
            raise
        except Exception as e:  # its own functions may raise anything, or return what cannot be iterated over
            what = f"{self._algorithm.collective} {self._algorithm.name} of {case.size} ranks"
            raise ScheduleError(what, None, None, None, f"raises {type(e).__name__}: {e}") from e
