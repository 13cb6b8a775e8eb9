"""Collective algorithms as data. Each is a pure function from a rank's place to its steps, and a line of a table."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from traceback import extract_tb
from typing import Any
from weakref import WeakSet

from mpicoll.algorithms import bruck, butterfly, direct, ring, trees, two_level
from mpicoll.algorithms.collectives import COLLECTIVES, canonical

from mpicoll.algorithms.steps import (  # isort: skip
    INPUT, OUTPUT, Copy, Cut, Nodes, Place, Schedule, Steps, per_rank, power_of_two, run, segments, segments_per_rank,
    whole,
)  # fmt: skip
from mpicoll.errors import PACKAGE, ArgumentError, MpicollError, ScheduleError
from mpicoll.units import line_named

MOST = 1000  # the most steps of a rank, for each rank and each segment that there are
MOST_SEGMENTS = 64  # the most segments that a vector is cut into. More segments cost more messages than they save


@dataclass(frozen=True)
class Algorithm:
    """One algorithm for one collective: a pure function from a rank's place to its steps, and facts about it.

    ``collective`` has MPI's name or torch's: ``all_reduce`` becomes ``allreduce``.

    The docstring of the function begins with a summary. Its last lines are ``Cost:``, in the terms of
    docs/reference/algorithms.md, and ``Source:``. ``declines(size, root)`` returns the reason why the algorithm cannot
    serve these, or None if it can. ``uneven`` says that it also serves blocks of different sizes (the v-variant). Then
    every message must carry the same blocks at both ends. ``segment`` is the bytes of a segment, if the algorithm is
    pipelined. ``by_node`` says that it depends on node placement."""

    collective: str
    name: str
    steps: Callable[[Place], Steps]
    cut: Cut = whole
    declines: Callable[[int, int], str | None] = lambda size, root: None
    uneven: bool = False
    segment: int | None = None
    by_node: bool = False

    def __post_init__(self) -> None:
        name = canonical(self.collective) if isinstance(self.collective, str) else None
        if name is None:
            raise ArgumentError("Algorithm", "collective", "one of " + ", ".join(COLLECTIVES), repr(self.collective))
        object.__setattr__(self, "collective", name)
        functions = {"steps": "a Place to its steps", "cut": "a Place to blocks", "declines": "size and root"}
        for argument, what in functions.items():
            if not callable(given := getattr(self, argument)):
                raise ArgumentError("Algorithm", argument, f"a function from {what}", repr(given))
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ArgumentError("Algorithm", "name", "a name of letters, digits and _", repr(self.name))
        if self.segment is not None and (type(self.segment) is not int or self.segment < 1):
            raise ArgumentError("Algorithm", "segment", "bytes, at least 1", repr(self.segment))

    @property
    def pipelined(self) -> bool:
        """Whether a longer vector is cut into more blocks."""
        return self.segment is not None

    def blocks(self, at: Place) -> int:
        table = COLLECTIVES[self.collective]
        if not table.moves:
            return 0
        return at.size if table.by_rank else self.cut(at)

    def schedule(self, rank: int, size: int, root: int = 0, segments: int = 1, nodes: Nodes | None = None) -> Schedule:
        """The schedule of this rank. ``nodes`` says where the ranks are, None that one node has them all.

        Raises ArgumentError, with the reason, if the algorithm declines."""
        if reason := self.declines(size, root):
            served = f"{size} ranks" + f" and root {root}" * COLLECTIVES[self.collective].rooted
            expected = f"one that serves {served} ({self.name} does not: {reason})"
            raise ArgumentError(self.collective, "algorithm", expected, repr(self.name))
        at = Place(rank, size, root, segments, nodes if self.by_node else None)
        what, most = f"{self.collective} {self.name} of {size} ranks", MOST * size * segments
        try:
            blocks = self.blocks(at)
            if size > 1:
                steps = self.steps(at)
            else:  # its input is its result
                copies = COLLECTIVES[self.collective].wants(0, 1, 0, blocks) and self.collective != "bcast"
                steps = [(Copy(run(0, blocks), INPUT, OUTPUT),)] if copies else []
            kept = tuple(islice(steps, most + 1))
        except (MpicollError, MemoryError):
            raise
        except Exception as e:  # a function of the program's may raise anything, or return what cannot be iterated over
            own = [each for each in extract_tb(e.__traceback__) if not each.filename.startswith(PACKAGE)][-1:]
            where = tuple(f"at {line_named(each.filename, each.lineno or 0)}: {each.line}" for each in own)
            cause = e.with_traceback(e.__traceback__ and e.__traceback__.tb_next)
            raise ScheduleError(what, rank, None, None, f"raises {type(e).__name__}: {e}", where) from cause
        if len(kept) > most:
            problem = f"yields more than {most:,} steps: does its function never end?"
            raise ScheduleError(what, rank, None, None, problem)
        return Schedule(self.collective, self.name, blocks, kept)

    @property
    def serves(self) -> str:
        """Every number of ranks, or why it declines some of 1 to 64 ranks with the first or the last rank as root."""
        reasons = dict.fromkeys(self.declines(size, root) for size in range(1, 65) for root in (0, size - 1))
        return "; ".join(f"not: {reason}" for reason in reasons if reason) or "every number of ranks"

    @property
    def summary(self) -> str:
        """What it does: the first paragraph of its docstring."""
        return inspect.cleandoc(self.steps.__doc__ or "").partition("\n\n")[0].replace("\n", " ")

    @property
    def cost(self) -> str:
        return self._stated("Cost")

    @property
    def paper(self) -> str:
        return self._stated("Source")

    def _stated(self, what: str) -> str:
        """What the end of its docstring says."""
        found = re.search(rf"^{what}:(.*(?:\n  .*)*)", inspect.cleandoc(self.steps.__doc__ or ""), re.MULTILINE)
        return " ".join(found[1].split()) if found else ""


BUILT_IN = (
    Algorithm("bcast", "linear", direct.bcast),
    Algorithm("bcast", "binomial_tree", trees.binomial_bcast),
    Algorithm("bcast", "binary_tree", trees.binary_bcast, segments, segment=1 << 18),
    Algorithm("bcast", "chain", ring.chain_bcast, segments, segment=1 << 18),
    Algorithm("bcast", "scatter_allgather", trees.scatter_allgather_bcast, per_rank),
    Algorithm("bcast", "double_binary_tree", trees.double_bcast, trees.halves, segment=1 << 18),
    Algorithm("bcast", "two_level", two_level.bcast, segments, segment=60 << 10, by_node=True),
    Algorithm("reduce", "linear", direct.reduce),
    Algorithm("reduce", "binomial_tree", trees.binomial_reduce),
    Algorithm("reduce", "binary_tree", trees.binary_reduce, segments, segment=1 << 18),
    Algorithm("reduce", "chain", ring.chain_reduce, segments, segment=1 << 18),
    Algorithm("reduce", "rabenseifner", butterfly.rabenseifner_reduce, power_of_two),
    Algorithm("reduce", "two_level", two_level.reduce, segments, segment=60 << 10, by_node=True),
    Algorithm("allreduce", "linear", direct.allreduce),
    Algorithm("allreduce", "binomial_tree", trees.binomial_allreduce),
    Algorithm("allreduce", "binary_tree", trees.binary_allreduce, segments, segment=1 << 18),
    Algorithm("allreduce", "double_binary_tree", trees.double_allreduce, trees.halves, segment=1 << 18),
    Algorithm("allreduce", "fixed_order", ring.fixed_order_allreduce, segments, segment=1 << 18),
    Algorithm("allreduce", "ring", ring.allreduce, per_rank),
    Algorithm("allreduce", "segmented_ring", ring.segmented_allreduce, segments_per_rank, segment=1 << 20),
    Algorithm("allreduce", "recursive_doubling", butterfly.doubling_allreduce),
    Algorithm("allreduce", "rabenseifner", butterfly.rabenseifner_allreduce, power_of_two),
    Algorithm("allreduce", "swing", butterfly.swing_allreduce, power_of_two),
    Algorithm("allreduce", "bine", butterfly.bine_allreduce, power_of_two),
    Algorithm("allreduce", "two_level", two_level.allreduce, two_level.slices, by_node=True),
    Algorithm("gather", "linear", direct.gather, uneven=True),
    Algorithm("gather", "binomial_tree", trees.binomial_gather, uneven=True),
    Algorithm("gather", "two_level", two_level.gather, uneven=True, by_node=True),
    Algorithm("allgather", "linear", direct.allgather, uneven=True),
    Algorithm("allgather", "tree", trees.binomial_allgather, uneven=True),
    Algorithm("allgather", "ring", ring.allgather, uneven=True),
    Algorithm("allgather", "recursive_doubling", butterfly.doubling_allgather, uneven=True),
    Algorithm("allgather", "bruck", bruck.allgather, uneven=True),
    Algorithm("allgather", "neighbour_exchange", ring.neighbour_exchange_allgather, uneven=True),
    Algorithm("allgather", "pat", bruck.pat_allgather, uneven=True, segment=1 << 16),
    Algorithm("allgather", "two_level", two_level.allgather, uneven=True, by_node=True),
    Algorithm("scatter", "linear", direct.scatter, uneven=True),
    Algorithm("scatter", "binomial_tree", trees.binomial_scatter, uneven=True),
    Algorithm("scatter", "two_level", two_level.scatter, uneven=True, by_node=True),
    Algorithm("reduce_scatter", "linear", direct.reduce_scatter, uneven=True),
    Algorithm("reduce_scatter", "ring", ring.reduce_scatter, uneven=True),
    Algorithm("reduce_scatter", "recursive_halving", butterfly.halving_reduce_scatter, uneven=True),
    Algorithm("reduce_scatter", "pairwise", direct.pairwise_reduce_scatter, uneven=True),
    Algorithm("reduce_scatter", "pat", bruck.pat_reduce_scatter, uneven=True, segment=1 << 16),
    Algorithm("reduce_scatter", "two_level", two_level.reduce_scatter, uneven=True, by_node=True),
    Algorithm("alltoall", "linear", direct.alltoall, uneven=True),
    Algorithm("alltoall", "pairwise", direct.pairwise_alltoall, uneven=True),
    Algorithm("alltoall", "bruck", bruck.alltoall),
    Algorithm("alltoall", "two_level", two_level.alltoall, by_node=True),
    Algorithm("scan", "chain", ring.chain_scan),
    Algorithm("scan", "recursive_doubling", butterfly.doubling_scan),
    Algorithm("exscan", "chain", ring.chain_exscan),
    Algorithm("exscan", "recursive_doubling", butterfly.doubling_exscan),
    Algorithm("barrier", "dissemination", bruck.dissemination_barrier),
    Algorithm("barrier", "two_level", two_level.barrier, by_node=True),
)

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
