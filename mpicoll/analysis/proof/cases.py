"""Which schedules of an algorithm are proved, and the proof for one case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.registry import Algorithm
from mpicoll.algorithms.steps import Nodes, Place, Schedule
from mpicoll.analysis.proof.explained import explained
from mpicoll.analysis.proof.verify import Listener, Proof, verify
from mpicoll.errors import ArgumentError, ScheduleError

FEW = 16
"""Up to so many ranks, every root is proved, in several numbers of segments and placements of the ranks. With more
ranks, the first and the last root are, in fewer of these: each takes longer, and shows little that is new."""
SEGMENTS = (1, 2, 5)
"""The numbers of segments for which a pipelined algorithm is proved, and of many ranks:"""
SEGMENTS_OF_MANY = (2,)


class Case(NamedTuple):
    """What is proved at once."""

    size: int
    root: int = 0
    segments: int = 1
    nodes: Nodes | None = None


def check_segments(command: str, algorithm: Algorithm, segments: int | None) -> None:
    """Raise ArgumentError for an impossible number of segments, and where the algorithm has none."""
    if segments is not None and (segments < 1 or not algorithm.pipelined):
        expected = "a number, at least 1" if algorithm.pipelined else f"none, as {algorithm.name} is not pipelined"
        raise ArgumentError(command, "--segments", expected, str(segments))


def cases(
    algorithm: Algorithm, sizes: Iterable[int], where: Callable[[int], Nodes] | None = None, segments: int | None = None
) -> Iterator[Case]:
    """What is to be proved for these numbers of ranks. The sizes keep their order. ``where(size)`` says where the ranks
    are. Otherwise, an algorithm that goes by nodes is proved for several ``placements``. A pipelined algorithm is
    proved for so many ``segments``, or for several numbers of them.

    Cases that the algorithm declines are left out.
    """
    for size in sizes:
        roots = range(size) if size <= FEW else (0, size - 1)
        for root in roots if COLLECTIVES[algorithm.collective].rooted else (0,):
            if not algorithm.declines(size, root):
                for cut in _segments(algorithm, size, segments):
                    for nodes in _nodes(algorithm, size, where):
                        yield Case(size, root, cut, nodes)


def _segments(algorithm: Algorithm, size: int, given: int | None) -> tuple[int, ...]:
    if not algorithm.pipelined:
        return (1,)
    if given is not None:
        return (given,)
    return SEGMENTS if size <= FEW else SEGMENTS_OF_MANY


def _nodes(algorithm: Algorithm, size: int, where: Callable[[int], Nodes] | None) -> Iterable[Nodes | None]:
    if not algorithm.by_node:
        return (None,)
    return placements(size) if where is None else (where(size),)


def placements(size: int) -> list[Nodes]:
    """Ways in which nodes may hold so many ranks: pairs; ranks dealt out to three nodes; and nodes of 1, 2, 4 ranks and
    so on. Of few ranks also one node; ranks dealt out to two nodes; and a node for each rank."""
    nodes: list[Callable[[int], int]] = [
        lambda rank: rank // 2,
        lambda rank: rank % 3,
        lambda rank: (rank + 1).bit_length(),
    ]
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
