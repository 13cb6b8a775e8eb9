"""Bare mpi4py, called as people write it: with NumPy arrays as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI

from mpicoll.bench.backends import Unavailable
from mpicoll.bench.cases.case import Case
from mpicoll.bench.cases.memory import Buffers
from mpicoll.bench.session import Session
from mpicoll.machine.gpu import takes_device_memory


class Bare:
    """The MPI library's own collectives."""

    new = None

    def __init__(self, session: Session) -> None:
        if session.on_gpu and not takes_device_memory():
            raise Unavailable("the MPI library does not say that it takes GPU memory")
        self._comm = session.world.Dup()
        self._on_gpu = session.on_gpu

    def bind(self, buffers: Buffers) -> Callable[[], object]:
        case, comm, root = buffers.case, self._comm, buffers.case.root
        x, out = buffers.torch() if self._on_gpu else buffers.numpy()
        # In place, MPI takes a marker instead of the input, or in a scatter instead of the output. In collectives
        # with a root only the root passes it.
        marked = case.in_place and (case.at_root or not case.collective.rooted)
        s: Any = MPI.IN_PLACE if marked else x
        op = _operation(case)
        match case.name:
            case "bcast":
                return partial(comm.Bcast, x, root)
            case "reduce":
                return partial(comm.Reduce, s, out, op, root)
            case "allreduce":
                return partial(comm.Allreduce, s, out, op)
            case "gather":
                return partial(comm.Gather, s, out, root)
            case "allgather":
                return partial(comm.Allgather, s, out)
            case "scatter":
                return partial(comm.Scatter, x, MPI.IN_PLACE if marked else out, root)
            case "reduce_scatter" if case.in_place:
                raise Unavailable("MPI's in-place reduce_scatter leaves its result at the start of the input")
            case "reduce_scatter":
                return partial(comm.Reduce_scatter_block, x, out, op)
            case "alltoall":
                return partial(comm.Alltoall, x, out)
            case "scan":
                return partial(comm.Scan, s, out, op)
            case "exscan":
                return partial(comm.Exscan, s, out, op)
            case "barrier":
                return comm.Barrier
        raise Unavailable(f"no {case.name} in mpi4py")

    def route(self) -> str:
        return "native"

    def close(self) -> None:
        self._comm.Free()


def _operation(case: Case) -> Any:
    r = case.reduction
    if r is None:
        return None
    if r.averages:
        raise Unavailable("MPI has no average")
    if case.dtype.storage is not None:
        raise Unavailable(f"MPI has no datatype for {case.dtype}")
    return getattr(MPI, r.combine)
