"""Checks of what callers pass: one clear error before any data moves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp

from mpicoll.arrays.buffers import as_buffer
from mpicoll.arrays.dtypes import Op
from mpicoll.errors import ArgumentError, DeviceError, DtypeError
from mpicoll.torch.group import ProcessGroup

__all__ = ["checked_timeout", "group_rank", "memory_of", "op_of", "outputs_of", "tensor_of", "tensors_of"]

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
"""Our name of each of torch's constants, by identity: hashing them takes longer than a short message."""


def op_of(op: Any, operation: str) -> str | Op:
    """Our op for a torch ReduceOp."""
    name = _NAMES.get(id(op))
    if name is not None:
        return name
    if isinstance(op, ReduceOp):
        for name, constant in _OPS.items():
            if op == constant:  # type: ignore[comparison-overlap]
                return name
        state: Any = op.__getstate__()
        if op == ReduceOp.PREMUL_SUM and isinstance(state, tuple):  # type: ignore[comparison-overlap]
            factor = state[1]
            return Op.premul_sum(factor.item() if isinstance(factor, torch.Tensor) else factor)
    expected = "a torch.distributed.ReduceOp (a PREMUL_SUM with its factor)"
    raise ArgumentError(operation, "op", expected, repr(op))


def tensor_of(x: Any, operation: str, argument: str) -> torch.Tensor:
    """``x``, if it is a tensor."""
    if not isinstance(x, torch.Tensor):
        raise ArgumentError(operation, argument, "a torch.Tensor", f"{type(x).__name__} {x!r}"[:100])
    return x


def memory_of(x: Any, operation: str, argument: str) -> torch.Tensor:
    """``x``, if it is a tensor whose memory can be moved."""
    tensor = tensor_of(x, operation, argument)
    as_buffer(tensor, operation, argument)
    return tensor


def tensors_of(
    xs: Any, operation: str, argument: str, size: int, like: torch.Tensor, shapes: bool = True
) -> list[torch.Tensor]:
    """``xs`` as a list of ``size`` tensors with the dtype, the device and (with ``shapes``) the shape of ``like``."""
    if not isinstance(xs, Sequence) or len(xs) != size:
        given = f"{len(xs)}" if isinstance(xs, Sequence) else repr(xs)
        raise ArgumentError(operation, argument, f"a list of {size} tensors, one a rank of the group", given)
    for i, x in enumerate(xs):
        at = f"{argument}[{i}]"
        tensor_of(x, operation, at)
        if x.dtype != like.dtype:
            raise DtypeError(operation, at, f"dtype {like.dtype}", str(x.dtype))
        if x.device != like.device:
            raise DeviceError(operation, at, f"a tensor on {like.device}", str(x.device))
        if shapes and x.shape != like.shape:
            raise ArgumentError(operation, at, f"shape {tuple(like.shape)}", f"{tuple(x.shape)}")
    return list(xs)


def outputs_of(
    xs: Any, operation: str, argument: str, size: int, like: torch.Tensor, shapes: bool = True
) -> list[torch.Tensor]:
    """``tensors_of``, if each of them can be written to."""
    tensors = tensors_of(xs, operation, argument, size, like, shapes)
    for i, x in enumerate(tensors):
        if not as_buffer(x, operation, f"{argument}[{i}]").writable:
            given = "one whose elements share memory"
            raise ArgumentError(operation, f"{argument}[{i}]", "a tensor that can be written to", given)
    return tensors


def checked_timeout(operation: str, timeout: Any, or_zero: bool = False) -> None:
    """ArgumentError unless ``timeout`` is a positive timedelta, or None, or zero where that means something."""
    nothing = timedelta(0)
    if timeout is None or (isinstance(timeout, timedelta) and (timeout > nothing or (or_zero and timeout == nothing))):
        return
    expected = "a datetime.timedelta, zero or more" if or_zero else "a positive datetime.timedelta"
    raise ArgumentError(operation, "timeout", expected, repr(timeout))


def group_rank(
    g: ProcessGroup,
    operation: str,
    argument: str,
    given: int | None,
    given_in_group: int | None,
    default: int | None = None,
) -> int:
    """The group's rank that is meant, by a global rank or by ``group_<argument>``, one of which must be given."""
    if given is not None and given_in_group is not None:
        both = f"{argument}={given}, group_{argument}={given_in_group}"
        raise ArgumentError(operation, argument, f"{argument} or group_{argument}, not both", both)
    if given_in_group is not None:
        if type(given_in_group) is not int or not 0 <= given_in_group < g.size():
            expected = f"a rank of the group, 0 to {g.size() - 1}"
            raise ArgumentError(operation, f"group_{argument}", expected, repr(given_in_group))
        return given_in_group
    if given is None:
        given = default
    if given is None:
        raise ArgumentError(operation, argument, f"a rank ({argument} or group_{argument})", "neither")
    if isinstance(given, bool) or given not in g.ranks:
        raise ArgumentError(operation, argument, f"one of the group's ranks, {list(g.ranks)}", repr(given))
    return g.ranks.index(given)
