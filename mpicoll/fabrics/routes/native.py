"""Calls as the MPI library's own collectives, also of vectors of more elements than a count in an MPI call can say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls import choose
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.errors import MessageError
from mpicoll.fabrics.transports.memory import moved, moved_bytes, moved_v
from mpicoll.fabrics.transports.transport import Array

Method = Callable[[str], Callable[..., Any]]

_TOO_LONG = 1 << 62  # added to the counts that a rank tells others, if its buffers are too long for one call


def bind(comm: MPI.Intracomm, call: Call, workspace: Workspace, is_long: bool | None) -> list[Plan]:
    """One call of the MPI library, with what must be done before it and after it.

    ``is_long`` says whether a vector has more elements than a count in an MPI call can say; None of an alltoallv, whose
    ranks know only their own buffers. Then a call that works element by element becomes several ones, each on a part of
    the vector, and one that moves blocks becomes messages. No other reduction ``is_long`` here."""
    if is_long and not call.collective.elementwise:
        return [_in_messages(comm, call)]
    steps: list[Plan] = []
    count = max((b.count for b in (call.send, call.recv) if b is not None), default=0)
    for start in range(0, count, choose.MAX_COUNT) if is_long else [0]:
        part = call
        if is_long:
            stop = min(start + choose.MAX_COUNT, count)
            send, recv = (b and b.part(start, stop) for b in (call.send, call.recv))
            part = replace(call, send=send, recv=recv)
        before, call_mpi, after = _parts(comm, part, workspace, partial(getattr, comm))
        steps += [*before, call_mpi, *after]
    if is_long is not None:
        return steps
    too_long, in_messages, direct = compared(comm, call), _in_messages(comm, call), sequence(*steps)

    def run() -> None:
        in_messages() if too_long() else direct()

    return [run]


def begin(comm: MPI.Intracomm, call: Call) -> Callable[[], tuple[MPI.Request, Sequence[Plan], Workspace]]:
    """A function that begins the library's call and returns its request, what comes after it, and its own scratch
    memory: several may be under way."""

    def bound() -> tuple[list[Plan], Any, list[Plan]]:
        return _parts(comm, call, scratch, lambda name: getattr(comm, f"I{name.lower()}"))

    scratch = Workspace()
    parts = bound()
    lasts = not scratch.nbytes

    def start() -> tuple[MPI.Request, Sequence[Plan], Workspace]:
        nonlocal scratch
        if not lasts:
            scratch = Workspace()
        before, run, after = parts if lasts else bound()
        for do in before:
            do()
        return run(), after, scratch

    return start


def bind_neighbours(comm: MPI.Topocomm, operation: str, send: Buffer, recv: Buffer, block: int) -> Plan:
    """The plan of a collective among the neighbours of a topology, with ``block`` elements for each of them."""
    (sent, _, kind), (received, _, _) = moved(send), moved(recv)
    method = comm.Neighbor_allgather if operation == "neighbor_allgather" else comm.Neighbor_alltoall
    return partial(method, [sent, block, kind], [received, block, kind])


def _parts(comm: MPI.Intracomm, call: Call, workspace: Workspace, method: Method) -> tuple[list[Plan], Any, list[Plan]]:
    """What is done before the library's call, the call, and what is done after it. ``method`` gives the library's
    function for a collective of MPI. MPI has no factors and no averages: this multiplies before and divides after."""
    reduction = call.reduction
    if reduction is None:
        return [], _moved(comm.size, method, call), []
    given = None if call.send is None else kernels.values(call.send)
    out = None if call.recv is None else kernels.values(call.recv)
    before: list[Plan] = []
    after: list[Plan] = []
    source, target = given, out
    if reduction.op.factor is not None:
        unscaled = out if given is None else given
        assert unscaled is not None
        (source,) = workspace.arrays(unscaled.dtype, unscaled.size)
        before.append(partial(kernels.scale, unscaled, reduction.op.factor, source, reduction.dtype))
    elif out is not None and call.in_place and given is not None:
        # A reduce_scatter into the rank's own block of the input. In place, MPI would write it to the first block.
        (target,) = workspace.arrays(out.dtype, out.size)
        after.append(partial(np.copyto, out, target))
    terms = call.terms(comm.rank, comm.size)
    if reduction.averages and target is not None and terms > 1:
        after.insert(0, partial(kernels.divide, target, terms, reduction.dtype))
    return before, _reduced_by_mpi(method, call, reduction, source, target), after


def _moved(size: int, method: Method, call: Call) -> Plan:
    table, root = call.collective, [call.root] * call.collective.rooted
    if not table.moves:
        return method("Barrier")
    if table.in_x:
        return partial(method("Bcast"), _blocks(call.recv or call.send, 1, None), *root)
    sent = _blocks(call.send, table.given_blocks(size), call.sendcounts)
    received = _blocks(call.recv, table.gotten_blocks(size), call.recvcounts)
    if call.in_place and table.gathers:
        sent = MPI.IN_PLACE
    elif call.in_place and table.scatters:
        received = MPI.IN_PLACE
    return partial(method(call.operation.capitalize()), sent, received, *root)


def _blocks(b: Buffer | None, blocks: int, counts: Sequence[int] | None) -> Any:
    return b and (moved(b, blocks) if counts is None else moved_v(b, counts))


def _reduced_by_mpi(
    method: Method, call: Call, reduction: Reduction, source: Array | None, target: Array | None
) -> Plan:
    """The call of the MPI library. Without a ``source`` it is in place."""
    kind = getattr(MPI, reduction.dtype.mpi or "DATATYPE_NULL")
    op = getattr(MPI, reduction.combine)
    sent: Any = MPI.IN_PLACE if source is None else _specified(source, kind)
    received = None if target is None else _specified(target, kind)
    if not call.collective.scatters:
        root = [call.root] * call.collective.rooted
        return partial(method(call.operation.capitalize()), sent, received, op, *root)
    if call.sendcounts is not None:
        return partial(method("Reduce_scatter"), sent, received, call.sendcounts, op)
    assert target is not None
    return partial(method("Reduce_scatter_block"), [sent[0], target.size, kind], received, op)


def _specified(array: Array, kind: MPI.Datatype) -> list[Any]:
    return [MPI.buffer.fromaddress(array.ctypes.data, array.nbytes), array.size, kind]


def _in_messages(comm: MPI.Intracomm, call: Call) -> Plan:
    outgoing = _cut(call.send, comm.size, call.sendcounts)
    incoming = _cut(call.recv, comm.size, call.recvcounts)
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

    def move() -> None:
        requests = [comm.Irecv(moved_bytes(block), peer) for peer, block in incoming.items()]
        requests += [comm.Isend(moved_bytes(block), peer) for peer, block in outgoing.items()]
        MPI.Request.Waitall(requests)

    return move


def compared(comm: MPI.Intracomm, call: Call) -> Callable[[], bool]:
    """A function that compares what ranks send in an alltoallv with what others expect of them, and returns whether a
    rank's buffers are too long for one call. MPI takes a message that is too short, and says nothing. It raises
    MessageError on the rank that expects another number."""
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


def _cut(buffer: Buffer | None, size: int, counts: Sequence[int] | None) -> dict[int, Buffer]:
    if buffer is None:
        return {}
    counts = counts or (buffer.count // size,) * size
    return {r: buffer.part(end - n, end) for r, (n, end) in enumerate(zip(counts, accumulate(counts), strict=True))}
