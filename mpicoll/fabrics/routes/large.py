"""Vectors of more elements than a count in an MPI call can say.

A collective that works element by element becomes several calls, each on a part of the vector. A collective that moves
blocks becomes point-to-point messages. A reduce_scatter is carried out by a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
from mpi4py import MPI

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls import choose
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.errors import MessageError
from mpicoll.fabrics.transports.memory import moved_bytes

_TOO_LONG = 1 << 62
"""Added to the counts that a rank tells others, if its buffers are too long for one call."""


def in_messages(comm: MPI.Intracomm, call: Call) -> Plan:
    """A collective that moves blocks, as messages."""
    outgoing = _blocks(call.send, comm.size, call.sendcounts)
    incoming = _blocks(call.recv, comm.size, call.recvcounts)
    match call.collective.name:
        case "gather":
            outgoing = {call.root: call.send} if call.send is not None else {}
        case "scatter":
            incoming = {call.root: call.recv} if call.recv is not None else {}
        case "allgather":
            own = incoming[comm.rank] if call.send is None else call.send
            outgoing = dict.fromkeys(range(comm.size), own)
    if call.in_place:  # the rank's own block is where it belongs already
        outgoing.pop(comm.rank, None)
        incoming.pop(comm.rank, None)
    return partial(_move, comm, outgoing, incoming)


def alltoallv(comm: MPI.Intracomm, call: Call, direct: Plan) -> Plan:
    """A rank knows only its own buffers. So the ranks tell each other in the call whether one has buffers that are too
    long for ``direct``, which is the MPI library's own call."""
    is_long, messages = compared(comm, call), in_messages(comm, call)

    def run() -> None:
        messages() if is_long() else direct()

    return run


def compared(comm: MPI.Intracomm, call: Call) -> Callable[[], bool]:
    """A function that compares what ranks send in an alltoallv with what others expect of them, and returns whether a
    rank's buffers are too long for one call. MPI takes a message that is too short, and says nothing.

    It raises MessageError on the rank that expects another number."""
    assert call.sendcounts is not None
    assert call.recvcounts is not None
    tells, told = np.array(call.sendcounts, np.int64), np.empty(comm.size, np.int64)
    if call.extent(comm.size) > choose.MAX_COUNT:
        tells += _TOO_LONG
    outgoing, incoming = ([numbers, 1, MPI.INT64_T] for numbers in (tells, told))
    expected = np.array(call.recvcounts, np.int64)
    as_usual, operation = expected.tobytes(), call.operation

    def compare() -> bool:
        comm.Alltoall(outgoing, incoming)
        if told.tobytes() == as_usual:  # NumPy takes a microsecond to compare numbers
            return False
        counts = told % _TOO_LONG
        differ = np.flatnonzero(counts != expected)
        if differ.size:
            r = int(differ[0])
            raise MessageError(f"{operation}: expected {expected[r]} elements from rank {r}; it sends {counts[r]}")
        return True

    return compare


def parts_of(call: Call) -> Iterator[Call]:
    """The call as several calls, each on a part of the vector."""
    count = max(b.count for b in (call.send, call.recv) if b is not None)
    for start in range(0, count, choose.MAX_COUNT):
        stop = min(start + choose.MAX_COUNT, count)
        send, recv = (None if b is None else b.part(start, stop) for b in (call.send, call.recv))
        yield replace(call, send=send, recv=recv)


def _blocks(buffer: Buffer | None, size: int, counts: Sequence[int] | None) -> dict[int, Buffer]:
    if buffer is None:
        return {}
    counts = counts or (buffer.count // size,) * size
    return {r: buffer.part(end - n, end) for r, (n, end) in enumerate(zip(counts, accumulate(counts), strict=True))}


def _move(comm: MPI.Intracomm, outgoing: dict[int, Buffer], incoming: dict[int, Buffer]) -> None:
    requests = [comm.Irecv(moved_bytes(block), peer) for peer, block in incoming.items()]
    requests += [comm.Isend(moved_bytes(block), peer) for peer, block in outgoing.items()]
    MPI.Request.Waitall(requests)
