"""Vectors of more elements than the counts of an MPI call can state.

A collective that works element by element is cut into runs of the vector, each bound by the route it would have
taken. One that scatters a reduction becomes reductions to each block's owner, and one that moves blocks becomes
point-to-point messages, each short enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
from mpi4py import MPI

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, sequence
from mpicoll.collectives import COLLECTIVES
from mpicoll.transports.memory import moved

__all__ = ["MAX_COUNT", "bind", "if_any", "pieces"]

MAX_COUNT = 2**31 - 1
"""The largest count that every MPI takes (MPI-4's large counts are not everywhere yet)."""


def pieces(buffer: Buffer) -> Iterator[Buffer]:
    """The runs of at most MAX_COUNT elements that make up the buffer; one, empty, if it has none."""
    for start in range(0, buffer.count or 1, MAX_COUNT):
        yield buffer.part(start, min(start + MAX_COUNT, buffer.count))


def bind(comm: MPI.Intracomm, call: Call, route: Callable[[Call], Plan]) -> Plan:
    """The call as calls and messages of at most MAX_COUNT elements."""
    if call.collective.elementwise:
        return sequence(*map(route, _runs(call)))
    if call.collective.reduces:
        return sequence(*map(route, _reductions_to_owners(comm, call)))
    outgoing = _blocks(call.send, comm.size, call.sendcounts)
    incoming = _blocks(call.recv, comm.size, call.recvcounts)
    match call.collective.name:
        case "gather":
            outgoing = {call.root: call.send} if call.send is not None else {}
        case "scatter":
            incoming = {call.root: call.recv} if call.recv is not None else {}
        case "allgather":
            mine = incoming[comm.rank] if call.send is None else call.send
            outgoing = dict.fromkeys(range(comm.size), mine)
    if call.in_place:  # the rank's own block is where it belongs
        outgoing.pop(comm.rank, None)
        incoming.pop(comm.rank, None)
    return partial(_move, comm, outgoing, incoming)


def if_any(comm: MPI.Intracomm, call: Call, direct: Plan) -> Plan:
    """``direct``, unless some rank's buffers are too long for it: no rank can tell from its own, so they ask."""
    mine, most = np.array([call.extent(comm.size)]), np.array([0])
    call = call.without_arrays()

    def run() -> None:
        comm.Allreduce(mine, most, MPI.MAX)
        plan = direct if most[0] <= MAX_COUNT else bind(comm, call, lambda _: direct)
        plan()

    return run


def _runs(call: Call) -> Iterator[Call]:
    count = max(b.count for b in (call.send, call.recv) if b is not None)
    for start in range(0, count, MAX_COUNT):
        stop = min(start + MAX_COUNT, count)
        send, recv = (None if b is None else b.part(start, stop) for b in (call.send, call.recv))
        yield replace(call, send=send, recv=recv)


def _reductions_to_owners(comm: MPI.Intracomm, call: Call) -> Iterator[Call]:
    for owner, block in _blocks(call.send, comm.size, call.sendcounts).items():
        mine = owner == comm.rank
        in_place = mine and call.in_place
        whole = replace(
            call,
            collective=COLLECTIVES["reduce"],
            send=None if in_place else block,
            recv=call.recv if mine else None,
            in_place=in_place,
            root=owner,
            uneven=False,
            sendcounts=None,
        )
        yield from _runs(whole)


def _blocks(buffer: Buffer | None, size: int, counts: Sequence[int] | None) -> dict[int, Buffer]:
    """Each rank's block of the buffer."""
    if buffer is None:
        return {}
    counts = counts or (buffer.count // size,) * size
    return {r: buffer.part(end - n, end) for r, (n, end) in enumerate(zip(counts, accumulate(counts), strict=True))}


def _move(comm: MPI.Intracomm, outgoing: dict[int, Buffer], incoming: dict[int, Buffer]) -> None:
    requests = []
    for peer, block in incoming.items():
        requests += [comm.Irecv(moved(piece), peer) for piece in pieces(block)]
    for peer, block in outgoing.items():
        requests += [comm.Isend(moved(piece), peer) for piece in pieces(block)]
    MPI.Request.Waitall(requests)
