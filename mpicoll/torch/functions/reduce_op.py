"""torch's ReduceOp as mpicoll's operation."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.distributed import ReduceOp

from mpicoll.arrays.dtypes import Op
from mpicoll.errors import ArgumentError

GivenOp: TypeAlias = ReduceOp | ReduceOp.RedOpType
"""What a caller may pass as ``op``: an instance of ReduceOp, or a constant such as ReduceOp.SUM."""

_OPS = {
    "sum": ReduceOp.SUM,
    "avg": ReduceOp.AVG,
    "prod": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
}

_NAMES = {id(op): name for name, op in _OPS.items()}
"""mpicoll's name of each of torch's constants, by the constant's id: nothing else tells one as fast."""

_BY_NUMBER = {hash(op): name for name, op in _OPS.items()}
"""The same by torch's number of the constant. It is the hash of the constant, and of a ReduceOp of that kind."""


def op_of(op: GivenOp, operation: str) -> str | Op:
    """mpicoll's operation for torch's ``op``: a constant such as ReduceOp.SUM, or an instance of ReduceOp."""
    name = _NAMES.get(id(op))
    if name is not None:
        return name
    if isinstance(op, ReduceOp):
        name = _BY_NUMBER.get(hash(op))  # to compare with one constant after another takes ten times as long
        if name is not None:
            return name
        state: Any = op.__getstate__()
        if op == ReduceOp.PREMUL_SUM and isinstance(state, tuple):  # type: ignore[comparison-overlap]
            factor = state[1]
            return Op.premul_sum(factor.item() if isinstance(factor, torch.Tensor) else factor)
    expected = "a torch.distributed.ReduceOp (a PREMUL_SUM with its factor)"
    raise ArgumentError(operation, "op", expected, repr(op))
