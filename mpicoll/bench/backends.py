"""The ways of calling collectives that are compared. A new one is a class here, and a line in ``options.BACKENDS``.

``mpicoll.torch``, and ``torch.distributed`` over mpicoll, gloo and NCCL, have functions of the same names and
signatures. One class serves all of them; it is given the module to call."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from mpicoll import Communicator
from mpicoll.bench.memory import Buffers
from mpicoll.bench.options import BACKENDS
from mpicoll.bench.session import Session
from mpicoll.calls import choose
from mpicoll.calls.choose import SHARED
from mpicoll.machine.mpi_library import takes_device_memory
from mpicoll.registration import register

TIMEOUT = timedelta(seconds=120)
_OPS = {"prod": "PRODUCT"} | {op: op.upper() for op in ("sum", "min", "max", "avg", "band", "bor", "bxor")}
_FEW_BLOCKS = "8"
"""CTAs a rank. Kernels of all ranks must find room on their GPU at the same time, because they wait for each other."""


class Unavailable(Exception):
    """A backend, or one case of it, cannot run here. The message says why, in words for the table."""


class Backend(Protocol):
    """One way of calling collectives.

    ``new`` makes host memory of so many bytes for its buffers. It is None where the backend uses those of the others.
    ``bind`` returns the call of ``buffers.case``, which has nothing left to look up, or raises Unavailable. ``route``
    says what has carried out the last call, as far as the backend knows. ``close`` frees what it holds."""

    new: Callable[[int], Any] | None

    def bind(self, buffers: Buffers) -> Callable[[], object]: ...

    def route(self) -> str: ...

    def close(self) -> None: ...


def open_backend(line: str, session: Session) -> Backend:
    """The backend for a line of the table, ``name`` or ``name:algorithm``. Collective. Raises Unavailable."""
    name, _, algorithm = (line, "", "") if line in BACKENDS else line.partition(":")
    opens: Callable[..., Backend] = globals()[BACKENDS[name]]
    return opens(session, algorithm) if algorithm else opens(session)


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
        if result is not None and not case.collective.in_x:  # it has one array, and is always in place
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
        if not case.collective.mpi:
            raise Unavailable(f"MPI has no {case.name}")
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
        call, *arguments = calls[case.name]
        return partial(call, *arguments)

    def route(self) -> str:
        return "native"

    def close(self) -> None:
        self._comm.Free()


class Torchlike:
    """The collectives of a module that has ``torch.distributed``'s functions, on ``group``."""

    new = None

    def __init__(self, module: Any, route: Callable[[], str], group: Any = None) -> None:
        self._module, self.route, self._group = module, route, group

    def bind(self, buffers: Buffers) -> Callable[[], object]:
        case, d, root = buffers.case, self._module, buffers.case.root
        x, out = buffers.torch()
        name = case.collective.torch
        if name is None:
            raise Unavailable(f"torch has no {case.name}")
        if not case.in_place and case.name in ("allreduce", "reduce"):
            raise Unavailable(f"torch's {name} works in place only")
        if case.collective.reduces and case.op not in _OPS:
            raise Unavailable(f"torch has no operation {case.op}")
        named = {} if self._group is None else {"group": self._group}
        op = (getattr(d.ReduceOp, _OPS[case.op]),) if case.collective.reduces else ()
        flat_x, flat_out = (None if each is None else each.view(-1) for each in (x, out))
        # Of other collectives' vectors, each element would become a tensor.
        blocks = {"gather": out, "scatter": x}.get(case.name)
        listed = None if blocks is None else [*blocks]
        calls: dict[str, tuple[Any, ...]] = {
            "bcast": (d.broadcast, x, root),
            "allreduce": (d.all_reduce, x, *op),
            "reduce": (d.reduce, x, root, *op),
            "gather": (d.gather, x, listed, root),
            "allgather": (self._single(name, "all_gather_into_tensor"), flat_out, x),
            "scatter": (d.scatter, out, listed, root),
            "reduce_scatter": (self._single(name, "reduce_scatter_tensor"), out, flat_x, *op),
            "alltoall": (d.all_to_all_single, flat_out, flat_x),
            "barrier": (d.barrier,),
        }
        call, *arguments = calls[case.name]
        return partial(call, *arguments, **named)

    def _single(self, name: str, older: str) -> Any:
        """The form that takes one tensor. torch 2.13 gave it a new name, and warns at each call by the old name."""
        return getattr(self._module, f"{name}_single", None) or getattr(self._module, older)

    def close(self) -> None:
        if self._module.is_initialized():
            self._module.destroy_process_group()


def torch_itself() -> Any:
    """The module torch. Raises Unavailable where there is none."""
    if find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    return import_module("torch")


def open_mpicoll_torch(session: Session) -> Torchlike:
    torch_itself()
    module = import_module("mpicoll.torch")
    module.init_process_group()
    comm = module.group.WORLD.comm
    return Torchlike(module, lambda: comm.last_route)


def open_torch(session: Session) -> Torchlike:
    module = distributed()
    group = module.new_group(backend="mpicoll", timeout=TIMEOUT)
    return Torchlike(module, lambda: group.comm.last_route, group)


def open_gloo(session: Session) -> Torchlike:
    return Torchlike(distributed(), lambda: "gloo")


def distributed() -> Any:
    """``torch.distributed``, initialised over gloo. MPI tells it the ranks. Collective."""
    module = torch_itself().distributed
    if not module.is_initialized():
        register()  # a checkout that is not installed has no entry point
        module.init_process_group("gloo", init_method="mpi://", timeout=TIMEOUT)
    return module


def open_nccl(session: Session) -> Torchlike:
    torch = torch_itself()
    if not session.on_gpu:
        gpu = "NCCL works on GPU memory only (--device cuda)"
        raise Unavailable(gpu if torch.cuda.is_available() else "there is no GPU")
    if not torch.distributed.is_nccl_available():
        raise Unavailable("this torch was built without NCCL")
    if session.sharing > 1:
        for name, value in settings_for_sharing(torch.cuda.nccl.version(), session.world.rank).items():
            os.environ.setdefault(name, value)
    module = distributed()
    return Torchlike(module, lambda: "nccl", module.new_group(backend="nccl", timeout=TIMEOUT))


def settings_for_sharing(version: tuple[int, ...], rank: int) -> dict[str, str]:
    """What lets NCCL of this version have several ranks on one GPU. By default it refuses them."""
    if version >= (2, 30):
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": _FEW_BLOCKS}
    # It takes each rank for one on a host of its own, and does not see that they share a GPU. They meet over sockets.
    return {"NCCL_HOSTID": f"mpicoll-bench-{rank}"}
