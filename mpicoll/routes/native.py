"""Calls as the MPI library's own collectives."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.transports.memory import moved, moved_v
from mpicoll.transports.transport import Array

__all__ = ["bind"]


def bind(comm: MPI.Intracomm, call: Call, workspace: Workspace) -> Plan:
    """The plan of one call of the MPI library, with what must be done before it and after it."""
    return _moved(comm, call) if call.reduction is None else _reduced(comm, call, call.reduction, workspace)


def _moved(comm: MPI.Intracomm, call: Call) -> Plan:
    """The plan of a collective that moves data and does not reduce it."""
    size, root, send, recv = comm.size, call.root, call.send, call.recv
    here: Any = MPI.IN_PLACE if call.in_place else None
    match call.operation:
        case "barrier":
            return comm.Barrier
        case "bcast":
            return partial(comm.Bcast, moved(recv or send), root)
        case "gather":
            return partial(comm.Gather, here or moved(send), recv and moved(recv, size), root)
        case "gatherv":
            return partial(comm.Gatherv, here or moved(send), recv and moved_v(recv, call.recvcounts), root)
        case "allgather":
            return partial(comm.Allgather, here or moved(send), moved(recv, size))
        case "allgatherv":
            return partial(comm.Allgatherv, here or moved(send), moved_v(recv, call.recvcounts))
        case "scatter":
            return partial(comm.Scatter, send and moved(send, size), here or moved(recv), root)
        case "scatterv":
            return partial(comm.Scatterv, send and moved_v(send, call.sendcounts), here or moved(recv), root)
        case "alltoall":
            return partial(comm.Alltoall, moved(send, size), moved(recv, size))
        case "alltoallv":
            return partial(comm.Alltoallv, moved_v(send, call.sendcounts), moved_v(recv, call.recvcounts))
    raise AssertionError(call.operation)


def _reduced(comm: MPI.Intracomm, call: Call, reduction: Reduction, workspace: Workspace) -> Plan:
    """The plan of a reduction. MPI has no factors and no averages: the plan multiplies before and divides after."""
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
    return sequence(*before, _reduced_by_mpi(comm, call, reduction, source, target), *after)


def _reduced_by_mpi(
    comm: MPI.Intracomm, call: Call, reduction: Reduction, source: Array | None, target: Array | None
) -> Plan:
    """The call of the MPI library. Without a ``source`` it is in place."""
    kind = getattr(MPI, reduction.dtype.mpi or "DATATYPE_NULL")
    op = getattr(MPI, reduction.combine)
    sent: Any = MPI.IN_PLACE if source is None else _specified(source, kind)
    received = None if target is None else _specified(target, kind)
    match call.operation:
        case "allreduce":
            return partial(comm.Allreduce, sent, received, op)
        case "reduce":
            return partial(comm.Reduce, sent, received, op, call.root)
        case "reduce_scatter":
            assert target is not None
            return partial(comm.Reduce_scatter_block, [sent[0], target.size, kind], received, op)
        case "reduce_scatterv":
            return partial(comm.Reduce_scatter, sent, received, call.sendcounts, op)
        case "scan":
            return partial(comm.Scan, sent, received, op)
        case "exscan":
            return partial(comm.Exscan, sent, received, op)
    raise AssertionError(call.operation)


def _specified(array: Array, kind: MPI.Datatype) -> list[Any]:
    """mpi4py's message specification of an array."""
    return [MPI.buffer.fromaddress(array.ctypes.data, array.nbytes), array.size, kind]
