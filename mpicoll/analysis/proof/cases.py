"""Which schedules of an algorithm are proved, the proof for one case, and how an algorithm of your own is listed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from threading import Lock
from typing import NamedTuple

from mpicoll import algorithms
from mpicoll.algorithms import Algorithm
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import Nodes, Place, Schedule
from mpicoll.analysis.proof.explained import explained
from mpicoll.analysis.proof.verify import Listener, Proof, verify
from mpicoll.errors import ArgumentError, ScheduleError

FEW = 16
"""Up to so many ranks, every root is proved, in several numbers of segments and placements of the ranks. With more
ranks, the first and the last root are, in fewer of these: each takes longer, and shows little that is new."""
SEGMENTS, SEGMENTS_OF_MANY = (1, 2, 5), (2,)  # for which a pipelined algorithm is proved, of few ranks and of many
_NO_SCHEDULES = ("native", "exchange", "node", "wide", "staged", "device", "ipc")
"""Names that ``algorithm=`` accepts although they are no schedules."""
MOST_PROVED = 64
"""Up to so many ranks, a call proves the algorithm before it runs: that takes up to some seconds. With more ranks, rank
0 warns that nobody has."""


class Case(NamedTuple):
    """What is proved at once."""

    size: int
    root: int = 0
    segments: int = 1
    nodes: Nodes | None = None


def cases(algorithm: Algorithm, sizes: Iterable[int]) -> Iterator[Case]:
    """What is to be proved for these numbers of ranks. The sizes keep their order. An algorithm that goes by nodes is
    proved for several ``placements``, and a pipelined algorithm for several numbers of segments.

    Cases that the algorithm declines are left out."""
    for size in sizes:
        roots: Iterable[int] = range(size) if size <= FEW else (0, size - 1)
        cuts: Iterable[int] = (1,)
        nodes: Iterable[Nodes | None] = (None,)
        if not COLLECTIVES[algorithm.collective].rooted:
            roots = (0,)
        if algorithm.pipelined:
            cuts = SEGMENTS if size <= FEW else SEGMENTS_OF_MANY
        if algorithm.by_node:
            nodes = placements(size)
        for root, cut, each in product(roots, cuts, nodes):
            if not algorithm.declines(size, root):
                yield Case(size, root, cut, each)


def placements(size: int) -> list[Nodes]:
    """Ways in which nodes may hold so many ranks: pairs; ranks dealt out to three nodes; and nodes of 1, 2, 4 ranks and
    so on. Of few ranks also one node; ranks dealt out to two nodes; and a node for each rank."""
    nodes: list[Callable[[int], int]] = [lambda rank: rank // 2, lambda rank: rank % 3, lambda r: (r + 1).bit_length()]
    if size <= FEW:
        nodes += [lambda rank: 0, lambda rank: rank % 2, lambda rank: rank]
    return [*dict.fromkeys(Nodes.named(map(node, range(size))) for node in nodes)]


def prove(algorithm: Algorithm, size: int, root: int = 0, segments: int = 1, nodes: Nodes | None = None) -> Proof:
    """Prove the schedules of all ranks. Raises ScheduleError, or ArgumentError for a case that it declines."""
    schedules = [algorithm.schedule(rank, size, root, segments, nodes) for rank in range(size)]
    return prove_schedules(schedules, algorithm, Case(size, root, segments, nodes))


def prove_schedules(
    schedules: Sequence[Schedule], algorithm: Algorithm, case: Case, listener: Listener | None = None
) -> Proof:
    """Prove these schedules of the algorithm. Raises ScheduleError, which shows the program's lines at the fault."""
    try:
        return verify(algorithm.collective, case.root, schedules, algorithm.uneven, listener)
    except ScheduleError as fault:
        places = [Place(rank, *case) for rank in range(case.size)]
        raise explained(fault, schedules, algorithm, places) from None


def register(algorithm: Algorithm, replace: bool = False) -> None:
    """Make ``algorithm=`` accept an algorithm of your own, on every rank that registers it.

    It is proved first: for 2 to 8 ranks, from every root, and for several numbers of segments. Raises ScheduleError if
    a proof fails. The error names the first rank, step and block that are wrong. Raises ArgumentError for a name that
    exists already, and for an algorithm that declines all these numbers of ranks.

    ``replace=True`` takes the place of an algorithm of the same name that you have registered before, as a cell of a
    notebook does that is run again. Built-in algorithms cannot be replaced.

    Among up to 64 ranks, the first call with another number of ranks or segments, or from another root, proves it for
    them, on every rank and before any data moves. With more ranks, that would take too long: the first call warns."""
    if not isinstance(algorithm, Algorithm):
        raise ArgumentError("register", "algorithm", "an Algorithm(collective, name, function)", repr(algorithm))
    if type(replace) is not bool:
        raise ArgumentError("register", "replace", "True or False", repr(replace))
    known = algorithms.find(algorithm.collective, algorithm.name)
    built_in = algorithm.name in _NO_SCHEDULES or known in algorithms.BUILT_IN
    if built_in or (known and not replace):
        expected = f"a name that {algorithm.collective} does not have yet" + ", or replace=True" * (not built_in)
        raise ArgumentError("register", "algorithm", expected, repr(algorithm.name))
    proved = _Proved(algorithm)
    case = Case(1)
    try:
        for case in cases(algorithm, range(1, 9)):
            proved.prove(case)
    except ScheduleError as fault:
        raise fault.with_traceback(None) from fault.__cause__  # mpicoll's own frames say nothing to who wrote it
    if case.size < 2:
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
            if case.size <= MOST_PROVED:
                self.prove(case)
                return
            self._known.add(case)
            if place.rank == 0:
                name = f"{self._algorithm.collective} {self._algorithm.name}"
                proof = f"`mpicoll verify {name} -n {case.size}`, called as own_algorithm.md says, proves it"
                warnings.warn(f"{name} was proved for 1 to 8 ranks only, not for {case.size}: {proof}", stacklevel=2)

    def prove(self, case: Case) -> None:
        """Raise ScheduleError unless the schedules are right."""
        prove(self._algorithm, *case)
        self._known.add(case)
