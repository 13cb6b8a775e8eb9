"""Reductions that the MPI library cannot do, or gets wrong: messages move the values, and ``kernels`` reduces them.

All values of an element meet on one rank, which reduces them in rank order. So a sum of 16-bit floats is added up in
float32 and rounded once, and all ranks get equal bits.

A long vector is cut into chunks, and a chunk into one slice for each rank. Each rank receives its slice from all ranks,
reduces it, and sends the result to all, or to the root. MPI's all-to-all and all-gather would also copy the slice that
a rank has already. A short vector is gathered and reduced by every rank: that takes one round of messages and not two.
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
from mpicoll.fabrics.transports.memory import moved_as
from mpicoll.fabrics.transports.mpi_requests import MPIRequests
from mpicoll.fabrics.transports.transport import Array

SHORT = 8 << 10  # bytes in the longest vector that every rank gathers as a whole
CHUNK = 2 << 20  # bytes in a chunk. So what a rank gathers stays in cache, and the scratch memory stays bounded.
SLICE = 64 << 10  # the fewest bytes in a rank's slice of a chunk, for which chunks of many ranks are longer
PARTNERS = 16  # the number of ranks with which a rank exchanges messages at the same time


def bind(comm: MPI.Intracomm, call: Call, workspace: Workspace) -> list[Plan]:
    source, table = call.recv if call.send is None else call.send, call.collective
    assert call.reduction is not None
    assert source is not None
    given = kernels.values(source)
    out = None if call.recv is None else kernels.values(call.recv)
    transport = MPIRequests(comm, None, given.dtype, np.empty(0, given.dtype))
    exchange = _Exchange(comm, call.reduction, workspace, transport)
    if table.scatters:
        counts = call.sendcounts or (given.size // comm.size,) * comm.size
        steps = exchange.scattered(given, out, counts)
    elif table.prefix is not None or (not table.rooted and given.nbytes <= SHORT):
        steps = exchange.gathered(given, out, call.terms(comm.rank, comm.size))
    else:
        steps = exchange.sliced(given, out, call.root if table.rooted else None)
    return [exchange.plan(steps)]


class _Exchange:
    """One call's exchange. A method for each pattern gives the steps, a few for each chunk."""

    def __init__(self, comm: MPI.Intracomm, reduction: Reduction, workspace: Workspace, transport: MPIRequests) -> None:
        self._comm, self._reduction, self._workspace, self._transport = comm, reduction, workspace, transport
        self._inboxes: list[Array] = []
        self._kind = moved_as(reduction.dtype.itemsize)
        self._chunk = max(CHUNK, SLICE * comm.size) // reduction.dtype.itemsize
        self._factors: list[Any] | None = None

    def plan(self, steps: Iterator[Plan]) -> Plan:
        """The steps as one plan. In a premul_sum, a rank first needs the factors of all ranks."""
        factor = self._reduction.op.factor

        def gather_factors() -> None:
            self._factors = self._comm.allgather(factor)

        first = [] if factor is None else [gather_factors]
        return self._transport.plan(sequence(*first, *steps), *self._inboxes)

    def gathered(self, given: Array, out: Array | None, terms: int) -> Iterator[Plan]:
        """Every rank gathers the whole vector of each rank, and reduces those of the first ``terms`` ranks."""
        size = self._comm.size
        for start, stop in _chunks(given.size, self._chunk // size):
            count = stop - start
            (inbox,) = self._workspace.arrays(given.dtype, size * count)
            yield partial(self._comm.Allgather, [given[start:stop], count, self._kind], [inbox, count, self._kind])
            if out is not None and terms:
                yield partial(self._reduce, [*inbox.reshape(size, count)[:terms]], out[start:stop])

    def sliced(self, given: Array, out: Array | None, root: int | None) -> Iterator[Plan]:
        """Each rank reduces its slice, and sends the result to the root, or to all ranks if ``root`` is None."""
        size, rank = self._comm.size, self._comm.rank
        for start, stop in _chunks(given.size, self._chunk):
            ends = [start + (stop - start) * r // size for r in range(size + 1)]
            slices = [slice(*pair) for pair in pairwise(ends)]
            result, steps = self._reduced([given[s] for s in slices], None if out is None else out[slices[rank]])
            yield from steps
            gives = [result if root in (None, r) else None for r in range(size)]
            takes = [out[s] if out is not None and root in (None, rank) else None for s in slices]
            yield from self._messages(gives, takes)

    def scattered(self, given: Array, out: Array | None, counts: Sequence[int]) -> Iterator[Plan]:
        assert out is not None
        rank = self._comm.rank
        blocks = np.split(given, [*accumulate(counts[:-1])])
        for start, stop in _chunks(max(counts), self._chunk // self._comm.size):
            slices = [block[start:stop] for block in blocks]
            yield from self._reduced(slices, out[start : min(stop, counts[rank])])[1]

    def _reduced(self, slices: Sequence[Array], out: Array | None) -> tuple[Array, list[Plan]]:
        """Each rank receives its slice from all ranks and reduces it, to ``out`` or else to scratch memory. Returns
        where the result will be, and the steps that bring it there."""
        size, rank = self._comm.size, self._comm.rank
        own = slices[rank]
        (inbox,) = self._workspace.arrays(own.dtype, size * own.size)
        self._inboxes.append(inbox)
        rows: list[Array] = [*inbox.reshape(size, own.size)]
        result = rows[rank] if out is None else out
        rows[rank] = own
        return result, [*self._messages(slices, rows), partial(self._reduce, rows, result)]

    def _messages(self, gives: Sequence[Array | None], takes: Sequence[Array | None]) -> list[Plan]:
        """Messages to and from each other rank; there is none where an array is None or empty. A step has messages with
        a few ranks only: where there are many ranks, all messages at once would be too many for a rank to store."""
        size, rank, transport = self._comm.size, self._comm.rank, self._transport
        steps_before = len(transport.steps)
        for first in range(1, size, PARTNERS):
            for distance in range(first, min(first + PARTNERS, size)):
                dest, source = (rank + distance) % size, (rank - distance) % size
                given, taken = gives[dest], takes[source]
                if given is not None and given.size:
                    transport.send(dest, [given])
                if taken is not None and taken.size:
                    transport.recv(source, [taken])
            transport.end_step()
        return transport.steps[steps_before:]

    def _reduce(self, rows: Sequence[Array], out: Array) -> None:
        factors = None if self._factors is None else self._factors[: len(rows)]  # a scan has the first ranks' rows
        kernels.reduce_rows(rows, out, self._reduction, factors)


def _chunks(count: int, length: int) -> Iterator[tuple[int, int]]:
    step = max(1, length)
    for start in range(0, count, step):
        yield start, min(start + step, count)
