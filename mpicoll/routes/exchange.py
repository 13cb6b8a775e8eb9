"""Reductions that the MPI library cannot do, or gets wrong: its collectives move the values, ``kernels`` folds them.

All values of an element meet in one place and are folded in rank order, so that a 16-bit sum is added up in float32
and rounded once, and all ranks hold equal bits. A vector is cut into segments, and a segment into one slice a rank:
each rank takes in its slice from all (all-to-all), folds it, and hands the result on (all-gather, or gather to
the root).
A short vector is gathered by everybody and folded by everybody: one round of messages in place of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll import kernels
from mpicoll.call import Call
from mpicoll.dtypes import Reduction
from mpicoll.plan import Plan, Workspace, sequence
from mpicoll.routes.native import datatype

__all__ = ["bind"]

SHORT = 8 << 10
"""Bytes of a vector up to which everybody gathers everything."""
SEGMENT = 2 << 20
"""Bytes under way at a time: what is gathered stays in cache, and scratch memory stays bounded."""

Array = np.ndarray[Any, Any]


def bind(comm: MPI.Intracomm, call: Call, workspace: Workspace) -> Plan:
    """The call as exchanges of segments and local folds."""
    assert call.reduction is not None
    source = call.recv if call.send is None else call.send
    assert source is not None
    given = kernels.values(source)
    out = None if call.recv is None else kernels.values(call.recv)
    exchange = _Exchange(comm, call.reduction, workspace)
    match call.collective:
        case "allreduce" if given.nbytes <= SHORT:
            steps = exchange.gathered(given, out, comm.size)
        case "allreduce":
            steps = exchange.sliced(given, out, None)
        case "reduce":
            steps = exchange.sliced(given, out, call.root)
        case "scan":
            steps = exchange.gathered(given, out, comm.rank + 1)
        case "exscan":
            steps = exchange.gathered(given, out, comm.rank)
        case _:
            counts = call.sendcounts or (given.size // comm.size,) * comm.size
            steps = exchange.scattered(given, out, counts)
    return sequence(*exchange.before(), *steps)


class _Exchange:
    """What the exchanges of one call share; each method gives the steps of one pattern, a few for each segment."""

    def __init__(self, comm: MPI.Intracomm, reduction: Reduction, workspace: Workspace) -> None:
        self._comm, self._reduction, self._workspace = comm, reduction, workspace
        self._kind = datatype(reduction.dtype)
        self._factors: list[Any] | None = None

    def before(self) -> list[Plan]:
        """For a premul_sum: ranks' factors may differ, and who folds a slice needs all of them."""
        factor = self._reduction.op.factor
        if factor is None:
            return []

        def tell() -> None:
            self._factors = self._comm.allgather(factor)

        return [tell]

    def gathered(self, given: Array, out: Array | None, rows: int) -> Iterator[Plan]:
        """Everybody gathers everything, and folds the first ``rows`` ranks' values."""
        size = self._comm.size
        for a, b in _pieces(given.size, SEGMENT // size // given.itemsize):
            (inbox,) = self._workspace.arrays(given.dtype, size * (b - a))
            yield partial(self._comm.Allgather, [given[a:b], b - a, self._kind], [inbox, b - a, self._kind])
            if out is not None and rows:
                yield partial(self._fold, inbox.reshape(size, b - a)[:rows], out[a:b])

    def sliced(self, given: Array, out: Array | None, root: int | None) -> Iterator[Plan]:
        """A slice a rank is folded there, then handed on to the root, or to everybody where that is None."""
        size, rank, kind = self._comm.size, self._comm.rank, self._kind
        for a, b in _pieces(given.size, SEGMENT // given.itemsize):
            counts = [(b - a) // size + (r < (b - a) % size) for r in range(size)]
            inbox, mine = self._workspace.arrays(given.dtype, size * counts[rank], counts[rank])
            yield self._all_to_all(given[a:b], counts, _starts(counts), inbox)
            yield partial(self._fold, inbox.reshape(size, counts[rank]), mine)
            result = None if out is None else [out[a:b], counts, _starts(counts), kind]
            if root is None:
                yield partial(self._comm.Allgatherv, [mine, counts[rank], kind], result)
            else:
                yield partial(self._comm.Gatherv, [mine, counts[rank], kind], result, root)

    def scattered(self, given: Array, out: Array | None, counts: Sequence[int]) -> Iterator[Plan]:
        """A block a rank is folded there, and stays."""
        assert out is not None
        size, rank = self._comm.size, self._comm.rank
        for a, b in _pieces(max(counts), SEGMENT // size // given.itemsize):
            parts = [max(0, min(n, b) - a) for n in counts]
            (inbox,) = self._workspace.arrays(given.dtype, size * parts[rank])
            yield self._all_to_all(given, parts, [start + a for start in _starts(counts)], inbox)
            yield partial(self._fold, inbox.reshape(size, parts[rank]), out[a : a + parts[rank]])

    def _all_to_all(self, given: Array, counts: Sequence[int], starts: Sequence[int], inbox: Array) -> Plan:
        size = self._comm.size
        taken = [inbox.size // size] * size
        return partial(
            self._comm.Alltoallv, [given, counts, starts, self._kind], [inbox, taken, _starts(taken), self._kind]
        )

    def _fold(self, rows: Array, out: Array) -> None:
        kernels.fold(rows, out, self._reduction, self._factors)


def _pieces(count: int, most: int) -> Iterator[tuple[int, int]]:
    step = max(1, most)
    for start in range(0, count, step):
        yield start, min(start + step, count)


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *accumulate(counts[:-1])]
