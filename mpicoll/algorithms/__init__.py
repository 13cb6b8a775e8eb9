"""Collective algorithms as data. Each is a pure function from a rank's place to its steps, and a line of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet

from mpicoll.algorithms import binary, binomial, bruck, butterfly, chain, direct, recursive, ring, two_level
from mpicoll.algorithms.registry import Algorithm as Algorithm
from mpicoll.algorithms.registry import per_rank, power_of_two, segments, segments_per_rank
from mpicoll.algorithms.steps import Nodes, Place, Schedule

MOST_SEGMENTS = 64
"""The most segments that a vector is cut into. More segments cost more messages than they save."""

_BUILT_IN = (
    Algorithm("bcast", "linear", direct.bcast),
    Algorithm("bcast", "binomial_tree", binomial.bcast),
    Algorithm("bcast", "binary_tree", binary.bcast, segments, segment=1 << 18),
    Algorithm("bcast", "chain", chain.bcast, segments, segment=1 << 18),
    Algorithm("bcast", "scatter_allgather", binomial.scatter_allgather_bcast, per_rank),
    Algorithm("bcast", "double_binary_tree", binary.double_bcast, binary.halves, segment=1 << 18),
    Algorithm("bcast", "two_level", two_level.bcast, segments, segment=60 << 10, by_node=True),
    Algorithm("reduce", "linear", direct.reduce),
    Algorithm("reduce", "binomial_tree", binomial.reduce),
    Algorithm("reduce", "binary_tree", binary.reduce, segments, segment=1 << 18),
    Algorithm("reduce", "chain", chain.reduce, segments, segment=1 << 18),
    Algorithm("reduce", "rabenseifner", butterfly.rabenseifner_reduce, power_of_two),
    Algorithm("reduce", "two_level", two_level.reduce, segments, segment=60 << 10, by_node=True),
    Algorithm("allreduce", "linear", direct.allreduce),
    Algorithm("allreduce", "binomial_tree", binomial.allreduce),
    Algorithm("allreduce", "binary_tree", binary.allreduce, segments, segment=1 << 18),
    Algorithm("allreduce", "double_binary_tree", binary.double_allreduce, binary.halves, segment=1 << 18),
    Algorithm("allreduce", "fixed_order", chain.fixed_order_allreduce, segments, segment=1 << 18),
    Algorithm("allreduce", "ring", ring.allreduce, per_rank),
    Algorithm("allreduce", "segmented_ring", ring.segmented_allreduce, segments_per_rank, segment=1 << 20),
    Algorithm("allreduce", "recursive_doubling", recursive.allreduce),
    Algorithm("allreduce", "rabenseifner", butterfly.rabenseifner_allreduce, power_of_two),
    Algorithm("allreduce", "swing", butterfly.swing_allreduce, power_of_two),
    Algorithm("allreduce", "bine", butterfly.bine_allreduce, power_of_two),
    Algorithm("allreduce", "two_level", two_level.allreduce, two_level.slices, by_node=True),
    Algorithm("gather", "linear", direct.gather, uneven=True),
    Algorithm("gather", "binomial_tree", binomial.gather, uneven=True),
    Algorithm("gather", "two_level", two_level.gather, uneven=True, by_node=True),
    Algorithm("allgather", "linear", direct.allgather, uneven=True),
    Algorithm("allgather", "tree", binomial.allgather, uneven=True),
    Algorithm("allgather", "ring", ring.allgather, uneven=True),
    Algorithm("allgather", "recursive_doubling", recursive.allgather, uneven=True),
    Algorithm("allgather", "bruck", bruck.allgather, uneven=True),
    Algorithm("allgather", "neighbour_exchange", ring.neighbour_exchange_allgather, uneven=True),
    Algorithm("allgather", "pat", bruck.pat_allgather, uneven=True, segment=1 << 16),
    Algorithm("allgather", "two_level", two_level.allgather, uneven=True, by_node=True),
    Algorithm("scatter", "linear", direct.scatter, uneven=True),
    Algorithm("scatter", "binomial_tree", binomial.scatter, uneven=True),
    Algorithm("scatter", "two_level", two_level.scatter, uneven=True, by_node=True),
    Algorithm("reduce_scatter", "linear", direct.reduce_scatter, uneven=True),
    Algorithm("reduce_scatter", "ring", ring.reduce_scatter, uneven=True),
    Algorithm("reduce_scatter", "recursive_halving", recursive.reduce_scatter, uneven=True),
    Algorithm("reduce_scatter", "pairwise", direct.pairwise_reduce_scatter, uneven=True),
    Algorithm("reduce_scatter", "pat", bruck.pat_reduce_scatter, uneven=True, segment=1 << 16),
    Algorithm("reduce_scatter", "two_level", two_level.reduce_scatter, uneven=True, by_node=True),
    Algorithm("alltoall", "linear", direct.alltoall, uneven=True),
    Algorithm("alltoall", "pairwise", direct.pairwise_alltoall, uneven=True),
    Algorithm("alltoall", "bruck", bruck.alltoall),
    Algorithm("alltoall", "two_level", two_level.alltoall, by_node=True),
    Algorithm("scan", "chain", chain.scan),
    Algorithm("scan", "recursive_doubling", recursive.scan),
    Algorithm("exscan", "chain", chain.exscan),
    Algorithm("exscan", "recursive_doubling", recursive.exscan),
    Algorithm("barrier", "dissemination", bruck.dissemination_barrier),
    Algorithm("barrier", "two_level", two_level.barrier, by_node=True),
)

Proves = Callable[[Place], None]
"""Proves an algorithm for this place, before it runs there. Raises ScheduleError."""

_REGISTRY: dict[tuple[str, str], tuple[Algorithm, Proves | None]] = {
    (a.collective, a.name): (a, None) for a in _BUILT_IN
}
"""The algorithms by their names. One that a program has registered is proved. The tests prove the built-in ones."""


def algorithms(collective: str | None = None) -> Iterator[Algorithm]:
    return (a for a, _ in _REGISTRY.values() if collective in (None, a.collective))


def find(collective: str, name: str) -> Algorithm | None:
    return _REGISTRY.get((collective, name), (None,))[0]


def is_built_in(collective: str, name: str) -> bool:
    return any((a.collective, a.name) == (collective, name) for a in _BUILT_IN)


class Binds(Protocol):
    """What binds calls to the schedules of algorithms, such as a communicator."""

    def forget_plans(self) -> None:
        """Bind the next calls afresh."""


binders: WeakSet[Binds] = WeakSet()
"""All that there are. A schedule that they have bound must not outlive its algorithm."""


def add(algorithm: Algorithm, proves: Proves | None = None) -> None:
    """List an algorithm that was proved, for some numbers of ranks if it has ``proves``: that is asked before each of
    its calls. It may take the place of another one."""
    replaced = find(algorithm.collective, algorithm.name)
    _REGISTRY[algorithm.collective, algorithm.name] = algorithm, proves
    for each in list(binders) if replaced else ():
        each.forget_plans()


@contextmanager
def temporary_registry() -> Iterator[None]:
    """At the end of the ``with`` block, forget the algorithms that were registered in it."""
    listed = dict(_REGISTRY)
    try:
        yield
    finally:
        _REGISTRY.clear()
        _REGISTRY.update(listed)


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
