"""Which algorithm carries out a call.

``native`` is the MPI library's own collective. ``exchange`` moves the values in messages and reduces them here: it
serves every dtype and operation that no MPI computes rightly. All others are schedules, by their names in
``mpicoll.algorithms``.

Where the caller names none, the environment variable MPICOLL_ALGORITHM may (``allreduce:ring,bcast:native``) for the
calls that this algorithm can serve. Otherwise a schedule is taken where it was measured to be faster on such a machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from mpicoll import algorithms as schedules
from mpicoll.collectives import COLLECTIVES, canonical
from mpicoll.dtypes import Reduction
from mpicoll.errors import ArgumentError
from mpicoll.measured import Table
from mpicoll.schedule import Place, Schedule

__all__ = ["Ranks", "Rules", "algorithms", "preferred", "schedule", "select"]

MOST_SEGMENTS = 64
"""Segments that a vector is cut into at most: more cost more in messages than they win."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides where the caller names no algorithm: the same on all ranks of a communicator, as long as it lives.

    ``preferred`` is the text of MPICOLL_ALGORITHM, and ``table`` what was measured on such a machine.
    """

    preferred: str = ""
    table: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ranks:
    """What is known of a communicator's ranks: how many, whether one node holds them all, the MPI library's name
    (``Open MPI``, ``MPICH``), empty where they are threads of one process, whether schedules pass long messages
    through memory that the ranks share, and their rules."""

    size: int
    one_node: bool
    library: str
    shares: bool = False
    rules: Rules = Rules()


def algorithms(collective: str, ranks: Ranks | None = None) -> tuple[str, ...]:
    """The names that ``algorithm=`` takes for this collective, or its v-variant, among these ranks."""
    name = collective.removesuffix("v")
    found = [a.name for a in schedules.algorithms(name) if a.uneven or collective == name]
    if ranks is not None and not ranks.library:
        return tuple(found)
    return ("native", *["exchange"] * COLLECTIVES[name].reduces, *found)


def select(
    collective: str, reduction: Reduction | None, nbytes: int, ranks: Ranks, root: int = 0, algorithm: str | None = None
) -> str:
    """The algorithm for a call whose whole vector has so many bytes: the one named, or the best where None is.

    Raises ArgumentError for a name that is unknown, or that cannot serve this call.
    """
    if algorithm is not None:
        expected = _why_not(algorithm, collective, reduction, ranks, root)
        if expected:
            raise ArgumentError(collective, "algorithm", expected, repr(algorithm))
        return algorithm
    wanted = _wanted(ranks.rules.preferred, collective.removesuffix("v"))
    if wanted is not None and not _why_not(wanted, collective, reduction, ranks, root):
        return wanted
    return _best(collective, reduction, nbytes, ranks)


def _why_not(algorithm: str, collective: str, reduction: Reduction | None, ranks: Ranks, root: int) -> str | None:
    """What to expect in the place of an algorithm that cannot serve this call; None where it can."""
    known = algorithms(collective, ranks)
    if algorithm not in known:
        return f"None or one of {', '.join(known)}"
    if algorithm == "native" and reduction is not None and not reduction.mpi:
        others = ", ".join(a for a in known if a != "native")
        return f"one that serves {reduction.op} of {reduction.dtype}, which MPI libraries do not: None, {others}"
    chosen = schedules.find(collective.removesuffix("v"), algorithm)
    reason = None if chosen is None else chosen.declines(ranks.size, root)
    return reason and f"one that serves {ranks.size} ranks and root {root} ({algorithm} does not: {reason})"


def schedule(collective: str, algorithm: str, rank: int, size: int, root: int, nbytes: int) -> Schedule | None:
    """The rank's schedule, for an algorithm that has one."""
    found = schedules.find(collective.removesuffix("v"), algorithm)
    if found is None:
        return None
    parts = 1
    if found.segment is not None:
        least = Place(rank, size, root)
        parts = max(1, min(MOST_SEGMENTS, round(nbytes / found.blocks(least) / found.segment)))
    return found.schedule(rank, size, root, parts)


def _best(collective: str, reduction: Reduction | None, nbytes: int, ranks: Ranks) -> str:
    if not ranks.library:
        return _WITHOUT_MPI[collective.removesuffix("v")]
    ours = reduction is not None and not reduction.mpi
    otherwise = "exchange" if ours else "native"
    if not (ranks.one_node and ranks.shares):  # the schedules were measured over shared memory
        return otherwise
    if reduction is not None and _rounds_more_than_once(reduction, ranks.size):
        return otherwise
    rows = ranks.rules.table.get(ranks.size, {}).get((otherwise, collective), ())
    return next((algorithm for from_bytes, algorithm in rows if nbytes >= from_bytes), otherwise)


def _rounds_more_than_once(reduction: Reduction, size: int) -> bool:
    """Whether a schedule would round 16-bit values oftener than the one time that exchange does: each time that two are
    combined, when they are scaled before, and when their sum is divided."""
    return reduction.rounds and (size > 2 or reduction.averages or reduction.op.factor is not None)


# Threads read each other's memory: what moves least data wins, and "linear" reduces in rank order.
_WITHOUT_MPI = {
    "bcast": "linear",
    "reduce": "linear",
    "allreduce": "linear",
    "gather": "linear",
    "allgather": "linear",
    "scatter": "linear",
    "reduce_scatter": "pairwise",
    "alltoall": "linear",
    "scan": "recursive_doubling",
    "exscan": "recursive_doubling",
    "barrier": "dissemination",
}


def preferred() -> str:
    """MPICOLL_ALGORITHM as this process has it."""
    return os.environ.get("MPICOLL_ALGORITHM", "")


def _wanted(text: str, collective: str) -> str | None:
    """The algorithm that the text of MPICOLL_ALGORITHM names for the collective."""
    name = _read(text).get(collective)
    if name is not None and name not in algorithms(collective):
        expected = f"for {collective} one of {', '.join(algorithms(collective))}"
        raise ArgumentError("mpicoll", "MPICOLL_ALGORITHM", expected, repr(name))
    return name


@lru_cache(maxsize=8)
def _read(text: str) -> Mapping[str, str]:
    """The algorithm of each collective that the text names."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        spelled, _, name = (word.strip() for word in part.partition(":"))
        collective = canonical(spelled)
        if collective is None or not name or collective in found:
            expected = "collective:algorithm, ... with names that `mpicoll algorithms` lists, each collective once"
            raise ArgumentError("mpicoll", "MPICOLL_ALGORITHM", expected, repr(part))
        found[collective] = name
    return found
