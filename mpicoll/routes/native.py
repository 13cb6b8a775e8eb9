"""The MPI library's own collectives."""

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

__all__ = ["bind"]


def bind(comm: MPI.Intracomm, call: Call, workspace: Workspace) -> Plan:
    """The call as one call of the MPI library, with what it needs before and after."""
    return _moved(comm, call) if call.reduction is None else _reduced(comm, call, call.reduction, workspace)


def _moved(comm: MPI.Intracomm, call: Call) -> Plan:
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
        # A reduce_scatter into the rank's own slot of the input. MPI's in-place form would put it elsewhere.
        (target,) = workspace.arrays(out.dtype, out.size)
        after.append(partial(np.copyto, out, target))
    terms = call.terms(comm.rank, comm.size)
    if reduction.averages and target is not None and terms > 1:
        after.insert(0, partial(kernels.divide, target, terms, reduction.dtype))

    kind = getattr(MPI, reduction.dtype.mpi or "DATATYPE_NULL")
    op = getattr(MPI, reduction.combine)
    s: Any = MPI.IN_PLACE if source is None else _bound(source, kind)
    r = None if target is None else _bound(target, kind)
    match call.operation:
        case "allreduce":
            plan: Plan = partial(comm.Allreduce, s, r, op)
        case "reduce":
            plan = partial(comm.Reduce, s, r, op, call.root)
        case "reduce_scatter":
            assert target is not None
            plan = partial(comm.Reduce_scatter_block, [s[0], target.size, kind], r, op)
        case "reduce_scatterv":
            plan = partial(comm.Reduce_scatter, s, r, call.sendcounts, op)
        case "scan":
            plan = partial(comm.Scan, s, r, op)
        case "exscan":
            plan = partial(comm.Exscan, s, r, op)
        case _:
            raise AssertionError(call.operation)
    return sequence(*before, plan, *after)


def _bound(array: np.ndarray[Any, Any], kind: MPI.Datatype) -> list[Any]:
    return [MPI.buffer.fromaddress(array.ctypes.data, array.nbytes), array.size, kind]
