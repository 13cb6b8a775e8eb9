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

from mpicoll.buffers import Buffer
from mpicoll.call import Call
from mpicoll.plan import Plan, sequence
from mpicoll.routes.native import moved, values

__all__ = ["MAX_COUNT", "bind", "pieces"]

MAX_COUNT = 2**31 - 1
"""The largest count that every MPI takes (MPI-4's large counts are not everywhere yet)."""


def pieces(buffer: Buffer) -> Iterator[Buffer]:
    """The runs of at most MAX_COUNT elements that make up the buffer."""
    for start in range(0, buffer.count, MAX_COUNT):
        yield buffer.part(start, min(start + MAX_COUNT, buffer.count))


def bind(comm: MPI.Intracomm, call: Call, route: Callable[[Call], Plan]) -> Plan:
    """The call as calls and messages of at most MAX_COUNT elements."""
    match call.collective.removesuffix("v"):
        case "bcast" | "allreduce" | "reduce" | "scan" | "exscan":
            return sequence(*map(route, _runs(call)))
        case "reduce_scatter":
            return sequence(*map(route, _reductions_to_owners(comm, call)))
    outgoing = _blocks(call.send, comm.size, call.sendcounts)
    incoming = _blocks(call.recv, comm.size, call.recvcounts)
    match call.collective.removesuffix("v"):
        case "gather":
            outgoing = {call.root: call.send} if call.send is not None else {}
        case "scatter":
            incoming = {call.root: call.recv} if call.recv is not None else {}
        case "allgather":
            mine = incoming[comm.rank] if call.send is None else call.send
            outgoing = dict.fromkeys(range(comm.size), mine)
    return partial(_move, comm, outgoing, incoming)


def _runs(call: Call) -> Iterator[Call]:
    count = call.largest
    for start in range(0, count, MAX_COUNT):
        stop = min(start + MAX_COUNT, count)
        cut = (None if b is None else b.part(start, stop) for b in (call.send, call.recv))
        send, recv = cut
        yield replace(call, send=send, recv=recv)


def _reductions_to_owners(comm: MPI.Intracomm, call: Call) -> Iterator[Call]:
    for owner, block in _blocks(call.send, comm.size, call.sendcounts).items():
        mine = owner == comm.rank
        in_place = mine and call.in_place
        whole = replace(
            call,
            collective="reduce",
            send=None if in_place else block,
            recv=call.recv if mine else None,
            in_place=in_place,
            root=owner,
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
        if peer != comm.rank:
            requests += [comm.Irecv(moved(piece), peer) for piece in pieces(block)]
    for peer, block in outgoing.items():
        if peer != comm.rank:
            requests += [comm.Isend(moved(piece), peer) for piece in pieces(block)]
    kept, taken = outgoing.get(comm.rank), incoming.get(comm.rank)
    if kept is not None and taken is not None and kept.address != taken.address:
        np.copyto(values(taken), values(kept))
    MPI.Request.Waitall(requests)
