"""Calls as the MPI library's own collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.fabrics.transports.memory import moved, moved_v
from mpicoll.fabrics.transports.transport import Array

Method = Callable[[str], Callable[..., Any]]


def bind(comm: MPI.Intracomm, call: Call, workspace: Workspace) -> list[Plan]:
    """One call of the MPI library, with what must be done before it and after it."""
    before, run, after = _parts(comm, call, workspace, partial(getattr, comm))
    return [*before, run, *after]


def begin(comm: MPI.Intracomm, call: Call) -> Callable[[], tuple[MPI.Request, Sequence[Plan]]]:
    """A function that begins the library's call that does not block, and returns its request and what must be done
    after it. If it needs scratch memory, it has other memory each time, because several may be under way."""

    def bound() -> tuple[list[Plan], Any, list[Plan]]:
        return _parts(comm, call, scratch, lambda name: getattr(comm, f"I{name.lower()}"))

    scratch = Workspace()
    parts = bound()
    lasts = not scratch.nbytes

    def start() -> tuple[MPI.Request, Sequence[Plan]]:
        nonlocal scratch
        if not lasts:
            scratch = Workspace()
        before, run, after = parts if lasts else bound()
        for do in before:
            do()
        return run(), after

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
        before.append(partial(kernels.reduce_rows, [unscaled], source, reduction, [reduction.op.factor]))
    elif out is not None and call.in_place and given is not None:
        # A reduce_scatter into the rank's own block of the input. In place, MPI would write it to the first block.
        (target,) = workspace.arrays(out.dtype, out.size)
        after.append(partial(np.copyto, out, target))
    terms = call.terms(comm.rank, comm.size)
    if reduction.averages and target is not None and terms > 1:
        after.insert(0, partial(kernels.divide, target, terms, reduction.dtype))
    return before, _reduced_by_mpi(method, call, reduction, source, target), after


def _moved(size: int, method: Method, call: Call) -> Plan:
    """A collective that moves data and does not reduce it."""
    table, root = call.collective, [call.root] * call.collective.rooted
    if not table.moves:
        return method("Barrier")
    if call.operation == "bcast":
        return partial(method("Bcast"), _blocks(call.recv or call.send, 1, None), *root)
    sent = _blocks(call.send, table.given_blocks(size), call.sendcounts)
    received = _blocks(call.recv, table.gotten_blocks(size), call.recvcounts)
    if call.in_place and table.gathers:
        sent = MPI.IN_PLACE
    elif call.in_place and table.scatters:
        received = MPI.IN_PLACE
    return partial(method(call.operation.capitalize()), sent, received, *root)


def _blocks(b: Buffer | None, blocks: int, counts: Sequence[int] | None) -> Any:
    if b is None:
        return None
    return moved(b, blocks) if counts is None else moved_v(b, counts)


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
    """mpi4py's message specification of an array."""
    return [MPI.buffer.fromaddress(array.ctypes.data, array.nbytes), array.size, kind]
