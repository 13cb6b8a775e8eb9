"""The backends with torch's names: ``mpicoll.torch``, and ``torch.distributed`` over mpicoll, gloo and other groups.

Their functions have the same names and signatures. One class serves all of them; it is given the module to call.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mpicoll.bench.backends import Unavailable
from mpicoll.bench.cases.case import Case
from mpicoll.bench.cases.memory import Buffers
from mpicoll.bench.session import Session
from mpicoll.registration import register

TIMEOUT = timedelta(seconds=120)
_OPS = {"prod": "PRODUCT"} | {op: op.upper() for op in ("sum", "min", "max", "avg", "band", "bor", "bxor")}


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
