"""What the rows of wrong arguments are made of: what they may use, and rows that several functions have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
import torch.distributed

from mpicoll.errors import ArgumentError, DeviceError, DtypeError
from tests.ranks.torch.api import dist
from tests.ranks.torch.cases import premul

FILL = 5.0
Call = Callable[[], object]


@lru_cache(maxsize=1)
def _groups(world: object) -> tuple[Any, Any]:
    """A group of this rank alone, and a destroyed group. All ranks make them, once for each default group."""
    destroyed = dist.new_group(list(range(dist.get_world_size())))
    dist.destroy_process_group(destroyed)
    return dist.new_group([dist.get_rank()]), destroyed


class Scene:
    """What a row of the table may use: tensors of FILL, which no wrong call may change, and groups."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.alone, self.destroyed = _groups(dist.group.WORLD)
        self.made: list[torch.Tensor] = []

    def t(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        self.made.append(torch.full(shape, FILL, dtype=dtype))
        return self.made[-1]

    def ts(self, *shape: int, more: int = 0) -> list[torch.Tensor]:
        return [self.t(*shape) for _ in range(self.size + more)]

    def sparse(self) -> torch.Tensor:
        return torch.ones(4).to_sparse()

    def meta(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta")

    def shared(self, n: int = 4) -> torch.Tensor:
        """A tensor of n elements that lie in one place."""
        return self.t(1).expand(n)

    def unchanged(self) -> bool:
        return all(torch.equal(x, torch.full(x.shape, FILL, dtype=x.dtype)) for x in self.made)


def of_tensors(call: Callable[[Scene, Any], Call], argument: str) -> dict[str, Any]:
    """Rows for one tensor argument of a function: things that are no tensor, or one that cannot be used."""
    return {
        "array": (lambda s: call(s, np.ones(4)), ArgumentError, argument, "torch.Tensor", "ndarray"),
        "list": (lambda s: call(s, [s.t(4)]), ArgumentError, argument, "torch.Tensor", "list"),
        "None": (lambda s: call(s, None), ArgumentError, argument, "torch.Tensor", "NoneType"),
        "sparse": (lambda s: call(s, s.sparse()), ArgumentError, argument, "dense", "sparse"),
        "meta": (lambda s: call(s, s.meta(4)), DeviceError, argument, "CPU or a CUDA GPU", "meta"),
    }


def of_outputs(call: Callable[[Scene, Any], Call], argument: str) -> dict[str, Any]:
    row = (lambda s: call(s, s.shared()), ArgumentError, argument, "can be written to", "share memory")
    return {**of_tensors(call, argument), "shared memory": row}


def of_roots(call: Callable[..., Call], argument: str, optional: bool = False) -> dict[str, Any]:
    """Rows for ``src`` or ``dst`` and its form within a group."""
    in_group = f"group_{argument}"
    rows: dict[str, Any] = {
        str(wrong): (partial(_with, call, {argument: wrong}), ArgumentError, argument, "ranks", repr(wrong))
        for wrong in (-1, 99, "0", True)
    }
    rows |= {
        f"{in_group}={wrong}": (partial(_with, call, {in_group: wrong}), ArgumentError, in_group, "rank", repr(wrong))
        for wrong in (-1, 99, "0", True)
    }
    for name, numbers in (("array", np.zeros(2, int)), ("tensor", torch.zeros(2))):
        rows |= {
            f"{which}: {name}": (partial(_with, call, {which: numbers}), ArgumentError, which, "rank", name)
            for which in (argument, in_group)
        }
    both = {argument: 0, in_group: 0}
    rows["both"] = partial(_with, call, both), ArgumentError, argument, f"{argument} or {in_group}, not both", "=0"
    if not optional:
        rows["neither"] = partial(_with, call, {}), ArgumentError, argument, f"{argument} or {in_group}", "neither"
    return rows


def _with(call: Callable[..., Call], arguments: dict[str, Any], s: Scene) -> Call:
    return call(s, **arguments)


def of_ops(call: Callable[[Scene, Any, torch.dtype], Call]) -> dict[str, Any]:
    rows: dict[str, Any] = {
        f"op={wrong!r}"[:12]: (
            lambda s, w=wrong: call(s, w, torch.float32),
            ArgumentError,
            "op",
            "ReduceOp",
            repr(wrong),
        )
        for wrong in ("sum", None, max, 0)
    }
    bare = dist.ReduceOp.RedOpType.PREMUL_SUM
    rows["op without factor"] = lambda s: call(s, bare, torch.float32), ArgumentError, "op", "factor", "PREMUL"
    ops = dist.ReduceOp
    for name, op, dtype in (
        ("avg", ops.AVG, torch.bool),
        ("band", ops.BAND, torch.float32),
        ("bor", ops.BOR, torch.float64),
        ("bxor", ops.BXOR, torch.bfloat16),
        ("min", ops.MIN, torch.complex64),
        ("max", ops.MAX, torch.complex128),
        ("premul_sum", premul(0.5), torch.int64),
        ("sum", ops.SUM, torch.float8_e4m3fn),
    ):
        row = lambda s, o=op, d=dtype: call(s, o, d), DtypeError, "op", f"{name}", str(dtype).removeprefix("torch.")
        rows[f"{name} of {dtype}"] = row
    return rows


def of_lists(call: Callable[[Scene, Any], Call], argument: str, but: str = "") -> dict[str, Any]:
    """Rows for a list with a tensor of 4 floats for each rank. The row ``but`` is left out."""
    first = f"{argument}[0]"
    rows = {
        "list missing": (lambda s: call(s, None), ArgumentError, argument, "a list of", "None"),
        "list is a tensor": (lambda s: call(s, s.t(4)), ArgumentError, argument, "a list of", "tensor"),
        "list too long": (lambda s: call(s, s.ts(4, more=1)), ArgumentError, argument, "one for each rank", "{size+1}"),
        "list empty": (lambda s: call(s, []), ArgumentError, argument, "one for each rank", "0"),
        "no tensor in list": (lambda s: call(s, [1.0] * s.size), ArgumentError, first, "torch.Tensor", "float"),
        "shape in list": (lambda s: call(s, s.ts(5)), ArgumentError, first, "(4,)", "(5,)"),
        "dtype in list": (
            lambda s: call(s, [s.t(4, dtype=torch.int32) for _ in range(s.size)]),
            DtypeError, first, "float32", "int32",
        ),
        "device in list": (lambda s: call(s, [s.meta(4)] * s.size), DeviceError, first, "cpu", "meta"),
    }  # fmt: skip
    return {name: row for name, row in rows.items() if name != but}


def of_output_lists(call: Callable[[Scene, Any], Call], argument: str, but: str = "") -> dict[str, Any]:
    def shared(s: Scene) -> Call:
        return call(s, [s.shared() for _ in range(s.size)])

    return {
        **of_lists(call, argument, but),
        "shared memory": (shared, ArgumentError, f"{argument}[0]", "can be written to", "share memory"),
    }
