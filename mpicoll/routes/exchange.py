"""Reductions that the MPI library cannot do, or gets wrong: messages move the values, and ``kernels`` reduces them.

All values of an element meet on one rank, which reduces them in rank order. So a 16-bit sum is added up in float32 and
rounded once, and all ranks hold equal bits.

A long vector is cut into chunks, and a chunk into one slice for each rank. Each rank takes in its slice from all ranks,
reduces it, and hands the result on to all ranks, or to the root. The messages are sent here: a rank's own slice need
not move, and the MPI's all-to-all and all-gather would copy it. Long messages go through memory that the ranks share,
if there is any. A short vector is gathered and reduced by every rank: one round of messages in place of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.transports.memory import datatype
from mpicoll.transports.messages import Messages
from mpicoll.transports.shared import Slots
from mpicoll.transports.transport import Array

__all__ = ["bind"]

SHORT = 8 << 10
"""Bytes of a vector up to which everybody gathers everything."""
CHUNK = 2 << 20
"""Bytes of a vector under way at a time: what is gathered stays in cache, and scratch memory stays bounded."""
SLICE = 64 << 10
"""Bytes of a rank's slice of a chunk, at least, where there are many ranks: else a plan would hold, and send, more
messages than their overhead is worth."""
PARTNERS = 16
"""Ranks that one exchanges messages with at a time."""


def bind(comm: MPI.Intracomm, call: Call, workspace: Workspace, slots: Slots | None = None) -> Plan:
    """The call as exchanges of chunks and local reductions; long messages go through ``slots``, if there are any."""
    assert call.reduction is not None
    source = call.recv if call.send is None else call.send
    assert source is not None
    given = kernels.values(source)
    out = None if call.recv is None else kernels.values(call.recv)
    no_staging = np.empty(0, given.dtype)
    transport = Messages(comm, call.operation, None, given.dtype, no_staging, slots)
    exchange = _Exchange(comm, call.reduction, workspace, transport)
    match call.collective.name:
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
    return exchange.plan(steps)


class _Exchange:
    """What the exchanges of one call share; each method gives the steps of one pattern, a few for each chunk."""

    def __init__(self, comm: MPI.Intracomm, reduction: Reduction, workspace: Workspace, transport: Messages) -> None:
        self._comm, self._reduction, self._workspace, self._transport = comm, reduction, workspace, transport
        self._inboxes: list[Array] = []
        self._kind = datatype(reduction.dtype)
        self._chunk = max(CHUNK, SLICE * comm.size) // reduction.dtype.itemsize
        self._factors: list[Any] | None = None

    def plan(self, steps: Iterator[Plan]) -> Plan:
        """The steps as one plan. A premul_sum's ranks may have different factors, and who reduces a slice needs all."""
        factor = self._reduction.op.factor

        def tell() -> None:
            self._factors = self._comm.allgather(factor)

        run = sequence(*([] if factor is None else [tell]), *steps)
        return self._transport.plan(run, *self._inboxes)

    def gathered(self, given: Array, out: Array | None, rows: int) -> Iterator[Plan]:
        """Everybody gathers everything, and reduces the first ``rows`` ranks' values."""
        size = self._comm.size
        for a, b in _pieces(given.size, self._chunk // size):
            (inbox,) = self._workspace.arrays(given.dtype, size * (b - a))
            yield partial(self._comm.Allgather, [given[a:b], b - a, self._kind], [inbox, b - a, self._kind])
            if out is not None and rows:
                yield partial(self._reduce, [*inbox.reshape(size, b - a)[:rows]], out[a:b])

    def sliced(self, given: Array, out: Array | None, root: int | None) -> Iterator[Plan]:
        """Each rank reduces its slice. The result is then handed on to the root, or to everybody where that is None."""
        size, rank = self._comm.size, self._comm.rank
        for a, b in _pieces(given.size, self._chunk):
            ends = [a + (b - a) * r // size for r in range(size + 1)]
            slices = [slice(*pair) for pair in pairwise(ends)]
            mine, steps = self._reduced([given[s] for s in slices], None if out is None else out[slices[rank]])
            yield from steps
            gives = [mine if root in (None, r) else None for r in range(size)]
            takes = [out[s] if out is not None and root in (None, rank) else None for s in slices]
            yield from self._messages(gives, takes)

    def scattered(self, given: Array, out: Array | None, counts: Sequence[int]) -> Iterator[Plan]:
        """Each rank reduces its block, which stays there."""
        assert out is not None
        rank = self._comm.rank
        blocks = np.split(given, [*accumulate(counts[:-1])])
        for a, b in _pieces(max(counts), self._chunk // self._comm.size):
            yield from self._reduced([block[a:b] for block in blocks], out[a : min(b, counts[rank])])[1]

    def _reduced(self, slices: Sequence[Array], out: Array | None) -> tuple[Array, list[Plan]]:
        """Each rank takes in its slice from all ranks and reduces it, to ``out`` or scratch memory: where, and how."""
        size, rank = self._comm.size, self._comm.rank
        own = slices[rank]
        (inbox,) = self._workspace.arrays(own.dtype, size * own.size)
        self._inboxes.append(inbox)
        rows: list[Array] = [*inbox.reshape(size, own.size)]
        result = rows[rank] if out is None else out
        rows[rank] = own
        return result, [*self._messages(slices, rows), partial(self._reduce, rows, result)]

    def _messages(self, gives: Sequence[Array | None], takes: Sequence[Array | None]) -> list[Plan]:
        """To and from each other rank; None or nothing is no message. A few at a time: all at once would flood ranks
        that are many."""
        size, rank, transport = self._comm.size, self._comm.rank, self._transport
        before = len(transport.steps)
        for first in range(1, size, PARTNERS):
            for distance in range(first, min(first + PARTNERS, size)):
                to, of = (rank + distance) % size, (rank - distance) % size
                given, taken = gives[to], takes[of]
                if given is not None and given.size:
                    transport.send(to, [given])
                if taken is not None and taken.size:
                    transport.recv(of, [taken])
            transport.end_step()
        return transport.steps[before:]

    def _reduce(self, rows: Sequence[Array], out: Array) -> None:
        kernels.reduce_rows(rows, out, self._reduction, self._factors)


def _pieces(count: int, most: int) -> Iterator[tuple[int, int]]:
    step = max(1, most)
    for start in range(0, count, step):
        yield start, min(start + step, count)
