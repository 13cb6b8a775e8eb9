"""Which schedules of an algorithm are proved, and the proof for one case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mpicoll.algorithms.registry import Algorithm
from mpicoll.analysis.proof.explained import explained
from mpicoll.analysis.proof.verify import Listener, Proof, verify
from mpicoll.collectives import COLLECTIVES
from mpicoll.errors import ScheduleError
from mpicoll.schedule import Schedule

__all__ = ["EVERY_ROOT", "cases", "prove", "prove_schedules"]

EVERY_ROOT = 16
"""Up to so many ranks, every root is proved. With more ranks, only the first and the last root are."""
SEGMENTS = (1, 2, 5)
"""The numbers of segments for which a pipelined algorithm is proved."""


def cases(algorithm: Algorithm, sizes: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """What is to be proved for these numbers of ranks: size, root and segments. The sizes keep their order.

    Cases that the algorithm declines are left out.
    """
    for size in sizes:
        roots = range(size) if size <= EVERY_ROOT else (0, size - 1)
        for root in roots if COLLECTIVES[algorithm.collective].rooted else (0,):
            if not algorithm.declines(size, root):
                for segments in SEGMENTS if algorithm.pipelined else (1,):
                    yield size, root, segments


def prove(algorithm: Algorithm, size: int, root: int = 0, segments: int = 1) -> Proof:
    """Prove the schedules of all ranks. Raises ScheduleError, or ArgumentError for a case that it declines."""
    schedules = [algorithm.schedule(rank, size, root, segments) for rank in range(size)]
    return prove_schedules(schedules, algorithm, root, segments)


def prove_schedules(
    schedules: Sequence[Schedule], algorithm: Algorithm, root: int, segments: int, listener: Listener | None = None
) -> Proof:
    """Prove these schedules of the algorithm. Raises ScheduleError, which shows the program's lines at the fault."""
    try:
        return verify(algorithm.collective, len(schedules), root, schedules.__getitem__, algorithm.uneven, listener)
    except ScheduleError as fault:
        raise explained(fault, schedules, algorithm, root, segments) from None
