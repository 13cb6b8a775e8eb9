"""The backends that take arrays: mpicoll's Communicator on NumPy arrays, or on torch tensors for what NumPy arrays
cannot be; and bare mpi4py, called as usually written, with NumPy arrays as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll import Communicator
from mpicoll.bench.backends import Unavailable
from mpicoll.bench.memory import Buffers
from mpicoll.bench.session import Session
from mpicoll.calls import choose
from mpicoll.calls.choose import SHARED
from mpicoll.machine.mpi_library import takes_device_memory


def open_shared(session: Session) -> ArrayLevel:
    """On buffers in memory that the ranks share."""
    if session.on_gpu:
        raise Unavailable("arrays in shared memory are not on a GPU")
    opened = ArrayLevel(session)
    new = partial(opened.comm.empty, dtype=np.uint8)
    x = new(1 << 20)
    opened.comm.allreduce(x, out=x)
    if opened.route() != SHARED:
        opened.close()
        raise Unavailable("the ranks cannot share arrays")
    opened.new = new
    return opened


class ArrayLevel:
    """A Communicator's collectives, by one algorithm or by the one that mpicoll chooses."""

    new: Callable[[int], Any] | None = None

    def __init__(self, session: Session, algorithm: str | None = None) -> None:
        self.comm = Communicator(session.world)
        self._algorithm = algorithm
        self._on_gpu = session.on_gpu

    def bind(self, buffers: Buffers) -> Callable[[], object]:
        case = buffers.case
        on_host = choose.device_route(self._algorithm)[1] if self._on_gpu else self._algorithm
        if on_host and on_host not in choose.names(case.name):
            raise Unavailable(f"{case.name} has no algorithm named {self._algorithm}")
        tensors = self._on_gpu or case.dtype.storage is not None  # then NumPy does not have the dtype
        if tensors and find_spec("torch") is None:
            raise Unavailable(f"{case.dtype} needs torch, which is not installed")
        x, out = buffers.torch() if tensors else buffers.numpy()
        if not case.collective.moves:
            return partial(self.comm.barrier, algorithm=self._algorithm) if self._algorithm else self.comm.barrier
        # As a user writes it: arguments that have their default value are not passed.
        named: dict[str, Any] = {}
        if case.collective.reduces and case.op != "sum":
            named["op"] = case.op
        if case.collective.rooted and case.root:
            named["root"] = case.root
        result = x if case.in_place and case.collective.gives == case.collective.gets else out
        if result is not None and case.name != "bcast":  # it has one array, and is always in place
            named["out"] = result
        if self._algorithm:
            named["algorithm"] = self._algorithm
        return partial(getattr(self.comm, case.name), x, **named)

    def route(self) -> str:
        return self.comm.last_route

    def close(self) -> None:
        self.comm.free()


class Bare:
    """The MPI library's own collectives."""

    new = None

    def __init__(self, session: Session) -> None:
        if session.on_gpu and not takes_device_memory():
            raise Unavailable("the MPI library does not report support for GPU memory")
        self._comm = session.world.Dup()
        self._on_gpu = session.on_gpu

    def bind(self, buffers: Buffers) -> Callable[[], object]:
        case, comm, root = buffers.case, self._comm, buffers.case.root
        x, out = buffers.torch() if self._on_gpu else buffers.numpy()
        # In place, MPI takes a marker instead of the input, or in a scatter instead of the output. In collectives
        # with a root only the root passes it.
        marked = case.in_place and (case.at_root or not case.collective.rooted)
        s: Any = MPI.IN_PLACE if marked else x
        r = case.reduction
        if r is not None and r.averages:
            raise Unavailable("MPI has no average")
        if r is not None and case.dtype.storage is not None:
            raise Unavailable(f"MPI has no datatype for {case.dtype}")
        op = None if r is None else getattr(MPI, r.combine)
        if case.name == "reduce_scatter" and case.in_place:
            raise Unavailable("MPI's in-place reduce_scatter leaves its result at the start of the input")
        calls: dict[str, tuple[Any, ...]] = {
            "bcast": (comm.Bcast, x, root),
            "reduce": (comm.Reduce, s, out, op, root),
            "allreduce": (comm.Allreduce, s, out, op),
            "gather": (comm.Gather, s, out, root),
            "allgather": (comm.Allgather, s, out),
            "scatter": (comm.Scatter, x, MPI.IN_PLACE if marked else out, root),
            "reduce_scatter": (comm.Reduce_scatter_block, x, out, op),
            "alltoall": (comm.Alltoall, x, out),
            "scan": (comm.Scan, s, out, op),
            "exscan": (comm.Exscan, s, out, op),
            "barrier": (comm.Barrier,),
        }
        if case.name not in calls:
            raise Unavailable(f"no {case.name} in mpi4py")
        call, *arguments = calls[case.name]
        return partial(call, *arguments)

    def route(self) -> str:
        return "native"

    def close(self) -> None:
        self._comm.Free()
