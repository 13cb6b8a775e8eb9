"""This rank as the caller of a function in a group: its arguments are checked, and every error names the function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch.distributed import ReduceOp

from mpicoll.arrays.buffers import as_buffer, repeats
from mpicoll.arrays.dtypes import Op
from mpicoll.calls.arguments import as_rank
from mpicoll.errors import ArgumentError, DeviceError, DtypeError
from mpicoll.node.loaded import kernel
from mpicoll.torch.group import GivenGroup, ProcessGroup, joined, member, world
from mpicoll.torch.private import profiler

GivenOp: TypeAlias = ReduceOp | ReduceOp.RedOpType
"""What a caller may pass as ``op``: an instance of ReduceOp, or a constant such as ReduceOp.SUM."""

_OPS = {
    "sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "prod": ReduceOp.PRODUCT, "min": ReduceOp.MIN, "max": ReduceOp.MAX,
    "band": ReduceOp.BAND, "bor": ReduceOp.BOR, "bxor": ReduceOp.BXOR,
}  # fmt: skip

_NAMES = {id(op): name for name, op in _OPS.items()}
"""mpicoll's name of each of torch's constants, by the constant's id: nothing else tells one as fast."""

_BY_NUMBER = {hash(op): name for name, op in _OPS.items()}
"""The same by torch's number of the constant. It is the hash of the constant, and of a ReduceOp of that kind."""

if kernel is not None:
    kernel.know_groups(vars(profiler), tuple(_OPS.values()), tuple(_OPS))


class Caller:
    """This rank, a member of ``group``, as the caller of the function ``operation``.

    Methods that check an argument take its name first. A Caller knows nothing of a single call. So the group keeps it
    for the next one: to make a Caller takes longer than to find it."""

    __slots__ = ("group", "operation")

    def __init__(self, operation: str, group: ProcessGroup) -> None:
        self.operation, self.group = operation, group

    def error(self, argument: str, expected: str, given: str) -> ArgumentError:
        return ArgumentError(self.operation, argument, expected, given)

    def tensor(self, argument: str, x: Any) -> torch.Tensor:
        """``x``, if it is a tensor."""
        if not isinstance(x, torch.Tensor):
            raise self.error(argument, "a torch.Tensor", f"{type(x).__name__} {x!r}"[:100])
        return x

    def memory(self, argument: str, x: Any) -> torch.Tensor:
        """``x``, if it is a tensor whose memory mpicoll can move."""
        tensor = self.tensor(argument, x)
        if self.group.engine.key(tensor) is None:  # it takes a tenth of the time
            as_buffer(tensor, self.operation, argument)
        return tensor

    def tensors(
        self, argument: str, xs: Any, like: torch.Tensor | None = None, shapes: bool = True, written: bool = False
    ) -> list[torch.Tensor]:
        """``xs`` as a list, if it is one tensor for each rank of the group, to which can be ``written``.

        All of them have the dtype and the device of ``like``, which is the first one if it is None, and its shape if
        ``shapes``."""
        size = self.group.size()
        if not isinstance(xs, Sequence) or len(xs) != size:
            given = f"{len(xs)}" if isinstance(xs, Sequence) else repr(xs)
            raise self.error(argument, f"a list of {size} tensors, one for each rank of the group", given)
        for i, x in enumerate(xs):
            at = f"{argument}[{i}]"
            self.tensor(at, x)
            like = x if like is None else like
            if x.dtype != like.dtype:
                raise DtypeError(self.operation, at, f"dtype {like.dtype}", str(x.dtype))
            if x.device != like.device:
                raise DeviceError(self.operation, at, f"a tensor on {like.device}", str(x.device))
            if shapes and x.shape != like.shape:
                raise self.error(at, f"shape {tuple(like.shape)}", f"{tuple(x.shape)}")
            if not written or (
                x.layout is torch.strided and (x.is_contiguous() or not repeats(x.shape, x.stride(), 1))
            ):
                continue  # to find that out takes a tenth of the time
            if not as_buffer(x, self.operation, at).writable:
                raise self.error(at, "a tensor that can be written to", "one whose elements share memory")
        return list(xs)

    def no_list(self, argument: str, xs: Any, owner: str, root: int) -> list[Any]:
        """Nothing. Raises ArgumentError if this rank passes a list, which only the root, the ``owner``, may do."""
        if xs:
            g = self.group
            only = f"only the {owner}, rank {g.global_rank(root)}, passes a list"
            raise self.error(argument, f"None on rank {g.global_rank(g.rank())}: {only}", f"a list of {len(xs)}")
        return []

    def root(self, argument: str, given: int | None, in_group: int | None, default: int | None = None) -> int:
        """The rank of the group that is meant, by its global rank or by its rank in the group.

        Exactly one of the two must be given, or none if there is a ``default``, which is a global rank."""
        if given is not None and in_group is not None:
            both = f"{argument}={given}, group_{argument}={in_group}"
            raise self.error(argument, f"{argument} or group_{argument}, not both", both)
        if in_group is not None:
            size, rank = self.group.size(), as_rank(in_group)
            if not 0 <= rank < size:
                raise self.error(f"group_{argument}", f"a rank of the group, 0 to {size - 1}", repr(in_group))
            return rank
        if given is None:
            given = default
        if given is None:
            raise self.error(argument, f"a rank ({argument} or group_{argument})", "neither")
        place = self.group.rank_of.get(as_rank(given))
        if place is None:
            raise self.error(argument, f"one of the group's ranks, {list(self.group.ranks)}", repr(given))
        return place

    def source(self, given: int | None, in_group: int | None) -> int | None:
        """The same for the sender of a message: None, which is any rank, if neither is given."""
        return None if given is None and in_group is None else self.root("src", given, in_group)


def caller_of(operation: str, group: GivenGroup) -> Caller | None:
    """This rank as the caller of ``operation`` in the group that ``group`` means. None if it is not in the group."""
    g = world().default if group is None else group
    if not isinstance(g, ProcessGroup) or g.comm.closed:
        g = member(group, operation)  # raises or warns, and says what is wrong
        if g is None:
            return None
    caller: Caller | None = g.callers.get(operation)
    return caller or g.callers.setdefault(operation, Caller(operation, g))


def joined_caller(operation: str, group: GivenGroup) -> Caller:
    """The same, but raise ArgumentError if this rank is not in the group."""
    caller = caller_of(operation, joined(group, operation))
    assert caller is not None
    return caller


def renamed(e: ArgumentError, operation: str, names: dict[str, str]) -> ArgumentError:
    """The Communicator's error as one of ``operation``, whose caller knows the arguments by other ``names``."""
    expected = re.sub(r"\b(xs?|out)\b", lambda found: names.get(found[0], found[0]), e.expected)
    return type(e)(operation, names.get(e.argument, e.argument), expected, e.given)


def checked_timeout(operation: str, timeout: Any) -> None:
    """Raise ArgumentError unless ``timeout`` is a positive timedelta, or None."""
    if timeout is not None and not (isinstance(timeout, timedelta) and timeout > timedelta(0)):
        raise ArgumentError(operation, "timeout", "a positive datetime.timedelta", repr(timeout))


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
