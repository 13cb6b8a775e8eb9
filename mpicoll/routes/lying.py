"""Reductions of arrays that lie in memory which the ranks of a node share: each rank reduces a slice where it lies.

All ranks meet. Each one reads its slice of all ranks' inputs, combines them in the order of the ranks, and writes the
result to all ranks' outputs. They meet again. Nothing is copied besides.

Source: the same is done by MPI libraries through XPMEM, as in Hashmi et al., "Designing efficient shared address space
reduction collectives for multi-/many-cores", IPDPS 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.calls.record import Record
from mpicoll.errors import MessageError
from mpicoll.machine.blocks import LEAST, Place, opened, place_of
from mpicoll.transports.meeting import FROM, Meeting, Posted
from mpicoll.transports.transport import Array

__all__ = ["SHARED", "Lying", "serves"]

SHARED = "shared"
"""The name of this way in records."""
LEAST_IN_TURNS = 128 << 10
"""Bytes of the shortest call that is carried out so where ranks take turns on cores."""
PIECE = 128 << 10
"""Bytes of a slice that are reduced and written at once: they stay in the second-level cache meanwhile."""
LINE = 64
"""Bytes between which slices are cut: two ranks that write to one line of the cache slow each other."""


def serves(call: Call, size: int, crowded: bool) -> bool:
    """Whether the call could be carried out so. The answer is the same on all ranks. ``crowded`` says whether they take
    turns on cores: then it takes longer to meet."""
    reduction = call.reduction
    return (
        call.collective.name == "allreduce"
        and reduction is not None
        and reduction.op.factor is None  # a factor may be another on each rank, which alone knows it
        and call.nbytes(size) >= (LEAST_IN_TURNS if crowded else LEAST)
    )


class Lying:
    """A call that is carried out where its arrays lie, if all ranks' arrays lie in shared memory, and ``otherwise``
    else."""

    def __init__(self, meeting: Meeting, call: Call, otherwise: Plan, record: Record) -> None:
        assert call.recv is not None
        send, recv = call.send or call.recv, call.recv
        self._meeting, self._call, self._otherwise, self._record = meeting, call, otherwise, record
        self._otherwise_named = record.route
        places = (place_of(b.address, b.nbytes) if b.plain and b.device == "cpu" else None for b in (send, recv))
        self._posted = Posted(recv.nbytes, *places)
        self._kind = recv.nbytes, recv.dtype, call.reduction
        self._versions: list[int] = []
        self._work: Plan | None = None

    def __call__(self) -> None:
        meeting = self._meeting
        meeting.calls += 1
        if not (self._posted.version or meeting.first[FROM]):  # every call in a program that has no shared arrays
            self._otherwise()
            return
        posted, record = self._posted, self._record
        if meeting.begins(posted.version != 0, self._kind):
            meeting.post(posted)
            meeting.come()
            versions = meeting.versions()
            if versions != self._versions:
                self._look(versions)
            if self._work is not None:
                record.route = SHARED
                meeting.go_on(self._kind)
                self._work()
                meeting.come()
                return
            meeting.pause(self._kind)
        record.route = self._otherwise_named
        self._otherwise()

    def _look(self, versions: list[int]) -> None:
        """Find the ranks' arrays, which lie elsewhere than the last time."""
        self._versions, self._work = versions, None
        if 0 in versions or self._posted.version == 0:
            return
        posted = [self._meeting.places(rank) for rank in range(self._meeting.size)]
        for rank, (nbytes, _, _) in enumerate(posted):
            if nbytes != posted[0][0]:
                raise MessageError(
                    f"{self._call.operation}: rank 0 gives {posted[0][0]} bytes, and rank {rank} {nbytes}"
                )
        inputs, outputs = zip(*((self._array(x), self._array(y)) for _, x, y in posted), strict=True)
        self._work = self._bound(inputs, outputs)

    def _array(self, place: Place) -> Array:
        recv = self._call.recv
        assert recv is not None
        block = opened(place)
        if block is None:
            raise MessageError(f"{self._call.operation}: the memory of process {place.process} cannot be opened")
        stored: np.dtype[Any] = kernels.storage(recv.dtype)
        return block[place.offset : place.offset + recv.nbytes].view(stored)

    def _bound(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Plan:
        """The reduction of this rank's slice, piece by piece."""
        rank, size, reduction = self._meeting.rank, self._meeting.size, self._call.reduction
        assert reduction is not None
        count, itemsize = outputs[rank].size, outputs[rank].itemsize
        line = max(1, LINE // itemsize)
        start, stop = (min(count, -(-(count * r // size) // line) * line) for r in (rank, rank + 1))
        piece = PIECE // itemsize
        steps: list[Plan] = []
        for first in range(start, stop, piece):
            part = slice(first, min(first + piece, stop))
            result = outputs[rank][part]
            rows = [each[part] for each in inputs]
            if size == 2 and not reduction.averages:
                steps.append(kernels.combination(reduction, rows[0], rows[1], result))
            else:
                steps.append(partial(kernels.reduce_rows, rows, result, reduction))
            for distance in range(1, size):
                steps.append(partial(np.copyto, outputs[(rank + distance) % size][part], result))

        def run() -> None:
            for step in steps:
                step()

        return kernels.quietly(run)
