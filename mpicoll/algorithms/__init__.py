"""Collective algorithms as data. Each is a pure function from a rank's place to its steps, with a line in the table at
the end of its family's file. All are found here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

from mpicoll.algorithms import bruck, butterfly, direct, ring, trees, two_level
from mpicoll.algorithms.algorithm import Algorithm as Algorithm
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import Nodes, Place, Schedule

MOST_SEGMENTS = 64  # the most segments that a vector is cut into. More segments cost more messages than they save

_FAMILIES = [*direct.ALGORITHMS, *trees.ALGORITHMS, *ring.ALGORITHMS, *butterfly.ALGORITHMS, *bruck.ALGORITHMS]
BUILT_IN = [a for name in COLLECTIVES for a in (*_FAMILIES, *two_level.ALGORITHMS) if a.collective == name]

Proves = Callable[[Place], None]
"""Proves an algorithm for this place, before it runs there. Raises ScheduleError."""

_REGISTRY: dict[tuple[str, str], tuple[Algorithm, Proves | None]] = {
    (a.collective, a.name): (a, None) for a in BUILT_IN
}
"""The algorithms by their names. One that a program has registered is proved. The tests prove the built-in ones."""


def algorithms(collective: str | None = None) -> Iterator[Algorithm]:
    return (a for a, _ in _REGISTRY.values() if collective in (None, a.collective))


def find(collective: str, name: str) -> Algorithm | None:
    return _REGISTRY.get((collective, name), (None,))[0]


binders: WeakSet[Any] = WeakSet()
"""All communicators. A schedule that they have bound must not outlive its algorithm: they ``forget_plans``."""


def add(algorithm: Algorithm, proves: Proves | None = None) -> None:
    """List an algorithm that was proved, for some numbers of ranks if it has ``proves``: that is asked before each of
    its calls. It may take the place of another one."""
    replaced = find(algorithm.collective, algorithm.name)
    _REGISTRY[algorithm.collective, algorithm.name] = algorithm, proves
    for each in list(binders) if replaced else ():
        each.forget_plans()


def schedule(
    collective: str, name: str, rank: int, size: int, root: int, nbytes: int, nodes: Nodes | None = None
) -> Schedule:
    """The rank's schedule for a vector of ``nbytes`` bytes, by the algorithm of this name.

    A registered algorithm is proved first, if it was not for as many ranks and segments and for this root. All ranks
    come to the same result, so ScheduleError is raised on all of them."""
    found, proves = _REGISTRY[collective, name]
    place = Place(rank, size, root, segments_of(found, size, root, nbytes), nodes)
    if proves is not None:
        proves(place)
    return found.schedule(*place)


def segments_of(algorithm: Algorithm, size: int, root: int, nbytes: int) -> int:
    """Into how many segments a call cuts a vector of ``nbytes`` bytes for this algorithm."""
    if algorithm.segment is None:
        return 1
    shortest = Place(0, size, root)
    return max(1, min(MOST_SEGMENTS, round(nbytes / algorithm.blocks(shortest) / algorithm.segment)))
