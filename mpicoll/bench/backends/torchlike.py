"""The backends with torch's names: ``mpicoll.torch``, and ``torch.distributed`` over mpicoll, gloo and NCCL.

Their functions have the same names and signatures. One class serves all of them; it is given the module to call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mpicoll.bench.backends import Unavailable
from mpicoll.bench.backends.communicator import chosen
from mpicoll.bench.cases.case import Case
from mpicoll.bench.cases.memory import Buffers
from mpicoll.bench.session import Session
from mpicoll.registration import register

__all__ = ["open_gloo", "open_mpicoll_torch", "open_nccl", "open_torch"]

TIMEOUT = timedelta(seconds=120)
_OPS = {"prod": "PRODUCT"} | {op: op.upper() for op in ("sum", "min", "max", "avg", "band", "bor", "bxor")}


class Torchlike:
    """The collectives of a module that has ``torch.distributed``'s functions, on ``group``."""

    def __init__(self, module: Any, route: Callable[[Case], str], group: Any = None) -> None:
        self._module, self._route, self._group = module, route, group

    def bind(self, buffers: Buffers) -> Callable[[], object]:
        case, d, root = buffers.case, self._module, buffers.case.root
        x, out = buffers.torch()
        name = case.collective.torch
        if name is None:
            raise Unavailable(f"torch has no {case.name}")
        if not case.in_place and case.name in ("allreduce", "reduce"):
            raise Unavailable(f"torch's {name} works in place only")
        named = {} if self._group is None else {"group": self._group}
        op: tuple[Any, ...] = (self._op(case),) if case.collective.reduces else ()
        match case.name:
            case "bcast":
                return partial(d.broadcast, x, root, **named)
            case "allreduce":
                return partial(d.all_reduce, x, *op, **named)
            case "reduce":
                return partial(d.reduce, x, root, *op, **named)
            case "gather":
                return partial(d.gather, x, None if out is None else list(out), root, **named)
            case "allgather":
                return partial(self._named("all_gather"), out.view(-1), x, **named)
            case "scatter":
                return partial(d.scatter, out, None if x is None else list(x), root, **named)
            case "reduce_scatter":
                return partial(self._named("reduce_scatter"), out, x.view(-1), *op, **named)
            case "alltoall":
                return partial(d.all_to_all_single, out.view(-1), x.view(-1), **named)
            case _:
                return partial(d.barrier, **named)

    def _named(self, collective: str) -> Any:
        """The form that takes one tensor. torch 2.13 gave it a new name, and warns at each call by the old name."""
        older = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[collective]
        return getattr(self._module, f"{collective}_single", None) or getattr(self._module, older)

    def _op(self, case: Case) -> Any:
        if case.op not in _OPS:
            raise Unavailable(f"torch has no operation {case.op}")
        return getattr(self._module.ReduceOp, _OPS[case.op])

    def route(self, case: Case) -> str:
        return self._route(case)

    def close(self) -> None:
        if self._module.is_initialized():
            self._module.destroy_process_group()


def _torch() -> Any:
    if find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    return import_module("torch")


def open_mpicoll_torch(session: Session, algorithm: str | None) -> Torchlike:
    _torch()
    module = import_module("mpicoll.torch")
    module.init_process_group()
    traits = module.group.WORLD.comm.traits
    return Torchlike(module, lambda case: chosen(case, traits))


def open_torch(session: Session, algorithm: str | None) -> Torchlike:
    distributed = _distributed()
    group = distributed.new_group(backend="mpicoll", timeout=TIMEOUT)
    return Torchlike(distributed, lambda case: chosen(case, group.comm.traits), group)


def open_gloo(session: Session, algorithm: str | None) -> Torchlike:
    return Torchlike(_distributed(), lambda _: "gloo")


def open_nccl(session: Session, algorithm: str | None) -> Torchlike:
    torch = _torch()
    if not session.on_gpu:
        gpu = "NCCL works on GPU memory only (--device cuda)"
        raise Unavailable(gpu if torch.cuda.is_available() else "there is no GPU")
    if not torch.distributed.is_nccl_available():
        raise Unavailable("this torch was built without NCCL")
    if session.node.size > torch.cuda.device_count():
        _share_gpus(session, torch.cuda.nccl.version())
    distributed = _distributed()
    return Torchlike(distributed, lambda _: "nccl", distributed.new_group(backend="nccl", timeout=TIMEOUT))


def _share_gpus(session: Session, version: tuple[int, ...]) -> None:
    """Ask NCCL for several ranks on one GPU, which it refuses by default."""
    if version >= (2, 30):
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        os.environ.setdefault("NCCL_MAX_CTAS", "8")
    else:
        # Never run. It gives each rank a host of its own, so that NCCL does not see that they share a GPU.
        os.environ.setdefault("NCCL_HOSTID", f"mpicoll-bench-{session.world.rank}")


def _distributed() -> Any:
    """``torch.distributed``, initialised over gloo. MPI tells it the ranks. Collective."""
    distributed = _torch().distributed
    if not distributed.is_initialized():
        register()  # a checkout that is not installed has no entry point
        distributed.init_process_group("gloo", init_method="mpi://", timeout=TIMEOUT)
    return distributed
