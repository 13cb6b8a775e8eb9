"""Collectives of which each rank passes one tensor, or one input and one output.

What these and the collectives of lists have in common:

- ``group``: None is the default group. A rank that is not in the group gets a warning and None, and takes no part.
- ``src`` and ``dst`` are global ranks; ``group_src`` and ``group_dst`` are ranks of the group.
- ``async_op=True`` returns a Work at once. The group's own thread carries the collective out, or who waits for it
  before the thread begins. Otherwise the call returns None when its result is there. A group's collectives run one
  after another, in the order of the calls. Some ranks may pass ``async_op=True`` and others not: every collective is a
  blocking MPI call in the end, because MPI forbids that a blocking call meets a non-blocking one.
- ``algorithm``, which torch does not have, is a name that ``mpicoll algorithms`` lists. None lets mpicoll choose.
- Tensors are on the CPU or a CUDA GPU, and need not be contiguous. Sparse ones are refused. One that requires grad is
  written in place, outside autograd. All ranks pass the same number of elements and the same dtype. Ranks compare that
  only where a docstring says so.
- On a GPU, a call comes after what the current stream has to do. When it returns, or when the Work's ``wait`` does, the
  current stream goes on after the result.
- Errors: ArgumentError for a wrong argument, with DtypeError and DeviceError as special cases, and StateError if the
  group was destroyed or there is no default group. The rank at fault raises it before any data moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from mpicoll.calls.arguments import checked_counts, sequence_of
from mpicoll.errors import ArgumentError
from mpicoll.torch.caller import NEW, Caller, GivenOp, caller_of, renamed
from mpicoll.torch.work import Work
from mpicoll.torch.world import GivenGroup

_IN_PLACE = {"x": "tensor"}
_INPUT_OUTPUT = {"xs": "input", "out": "output"}
_GATHERED = {"x": "input_tensor", "out": "output_tensor"}
_EXCHANGED = {**_INPUT_OUTPUT, "sendcounts": "input_split_sizes", "recvcounts": "output_split_sizes"}
"""The Communicator's names of arguments, and the names of them here."""


def all_reduce(
    tensor: torch.Tensor,
    op: GivenOp = ReduceOp.SUM,
    group: GivenGroup = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Reduce all ranks' ``tensor`` element by element. Every rank's ``tensor`` becomes the result.

    Raises DtypeError if ``op`` is not defined on the dtype. Sums of float16 and bfloat16 are added up in float32 and
    rounded once. Complex numbers work with PRODUCT too, which torch's function refuses.
    """
    caller = caller_of("all_reduce", group)
    if caller is None:
        return None
    how = caller.op(op)
    if (known := caller.repeated(async_op, "allreduce", tensor, None, how, 0, algorithm)) is not NEW:
        return known
    caller.tensor("tensor", tensor)
    return carried_out(caller, "allreduce", tensor, None, async_op, algorithm, _IN_PLACE, how)


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: GivenGroup = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Every rank's ``tensor`` becomes the source's. A dtype that cannot be reduced, such as float8, can be sent."""
    caller = caller_of("broadcast", group)
    if caller is None:
        return None
    root = caller.root("src", src, group_src)
    if (known := caller.repeated(async_op, "bcast", tensor, None, None, root, algorithm)) is not NEW:
        return known
    caller.tensor("tensor", tensor)
    return carried_out(caller, "bcast", tensor, None, async_op, algorithm, _IN_PLACE, root=root)


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: GivenOp = ReduceOp.SUM,
    group: GivenGroup = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Reduce all ranks' ``tensor`` as :func:`all_reduce` does. Only the destination's becomes the result.

    The other ranks' tensors stay as they were. (gloo leaves partial results in them.)
    """
    caller = caller_of("reduce", group)
    if caller is None:
        return None
    root, how = caller.root("dst", dst, group_dst), caller.op(op)
    if (known := caller.repeated(async_op, "reduce", tensor, None, how, root, algorithm)) is not NEW:
        return known
    caller.tensor("tensor", tensor)
    return carried_out(caller, "reduce", tensor, None, async_op, algorithm, _IN_PLACE, how, root)


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: GivenGroup = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """``output_tensor`` becomes all ranks' ``input_tensor``, in rank order.

    It has the dtype of ``input_tensor`` and as many elements as all ranks' together, in any shape. ``input_tensor``
    may be this rank's part of it.
    """
    caller = caller_of("all_gather_into_tensor", group)
    if caller is None:
        return None
    if (known := caller.repeated(async_op, "allgather", input_tensor, output_tensor, None, 0, algorithm)) is not NEW:
        return known
    caller.tensor("output_tensor", output_tensor)
    caller.tensor("input_tensor", input_tensor)
    return carried_out(caller, "allgather", input_tensor, output_tensor, async_op, algorithm, _GATHERED)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: GivenOp = ReduceOp.SUM,
    group: GivenGroup = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Reduce all ranks' ``input``. Rank r's ``output`` becomes the r-th of equal blocks of the result.

    ``input`` has the dtype of ``output`` and as many elements as all ranks' outputs together, in any shape.
    ``output`` may be this rank's block of it. Dtypes and operations are those of :func:`all_reduce`.
    """
    caller = caller_of("reduce_scatter_tensor", group)
    if caller is None:
        return None
    how = caller.op(op)
    if (known := caller.repeated(async_op, "reduce_scatter", input, output, how, 0, algorithm)) is not NEW:
        return known
    caller.tensor("output", output)
    caller.tensor("input", input)
    return carried_out(caller, "reduce_scatter", input, output, async_op, algorithm, _INPUT_OUTPUT, how)


# torch's names of them since torch 2.13.
all_gather_single, reduce_scatter_single = all_gather_into_tensor, reduce_scatter_tensor


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: GivenGroup = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Send the r-th block of rows of ``input`` to rank r. ``output`` becomes the blocks received, in rank order.

    ``input_split_sizes`` are the rows of each block of ``input``, ``output_split_sizes`` those of ``output``. Without
    them the blocks are equal. Both tensors have one dtype. A rank raises MessageError if it is sent a block of another
    size than it expects.
    """
    caller = caller_of("all_to_all_single", group)
    if caller is None:
        return None
    caller.memory("input", input)
    caller.memory("output", output)
    # Equal blocks get split sizes too: some ranks may pass sizes and others not, and all must make the same MPI calls.
    input_rows = _listed(caller, "input_split_sizes", input_split_sizes)
    output_rows = _listed(caller, "output_split_sizes", output_split_sizes)
    sent = _split_sizes(caller, "input", input, input_rows)
    expected = _split_sizes(caller, "output", output, output_rows)
    if output_rows is None and input_rows is None and output.numel() != input.numel():
        given = f"{output.numel()} (shape {tuple(output.shape)})"
        raise caller.error("output", f"{input.numel()} elements for input of {input.numel()}", given)
    if (known := caller.repeated(async_op, "alltoallv", input, output, None, 0, algorithm, sent, expected)) is not NEW:
        return known
    counts = sent, expected
    return carried_out(caller, "alltoallv", input, output, async_op, algorithm, _EXCHANGED, counts=counts)


class Lists(NamedTuple):
    """Tensors in the place of which others travel, and the copies before and after that."""

    ins: list[torch.Tensor]
    before: Callable[[], object]
    outs: list[torch.Tensor]
    after: Callable[[], object]


def carried_out(
    caller: Caller,
    collective: str,
    x: torch.Tensor | None,
    out: torch.Tensor | None,
    async_op: bool,
    algorithm: str | None,
    names: dict[str, str],
    op: Any = None,
    root: int = 0,
    counts: Sequence[Sequence[int]] = (),
    lists: Lists | None = None,
) -> Work | None:
    """Carry out a collective from ``x`` to ``out``, or in place. ``names`` are the caller's names of its arguments.

    ``counts`` are those of a method for uneven blocks. ``x`` and ``out`` may stand for ``lists`` of tensors.
    """
    engine, operation = caller.group.engine, caller.operation
    call = collective, x, out, op, root, algorithm, *counts
    try:
        plan = engine.plan(*call)
    except ArgumentError as e:
        raise renamed(e, operation, names) from None
    engine.keep(plan, call)

    def run(_keep: Any = (x, out)) -> None:  # a plan holds addresses: this keeps the memory
        if lists is not None:
            lists.before()
        engine.execute(plan, operation)
        if lists is not None:
            lists.after()

    written = [] if x is None else [x if out is None else out]
    ins, outs = ((), written) if lists is None else (lists.ins, lists.outs)
    return caller.group.in_turn(operation, run, outs, async_op, ins)


def _listed(caller: Caller, argument: str, sizes: Any) -> Sequence[Any] | None:
    """``sizes`` as a list; None if there are none, for which torch also passes an empty list."""
    return None if sizes is None else sequence_of(sizes, caller.operation, argument, "ints") or None


def _split_sizes(caller: Caller, argument: str, x: torch.Tensor, sizes: Sequence[Any] | None) -> Sequence[int]:
    """The rows of each block of ``x``: ``sizes``, or equal ones if ``sizes`` is None."""
    size, name = caller.group.size(), f"{argument}_split_sizes"
    rows = x.shape[0] if x.dim() else 0
    if sizes is None:
        if x.dim() == 0 or rows % size:
            raise caller.error(argument, f"a multiple of {size} rows, or {name}", f"shape {tuple(x.shape)}")
        return [rows // size] * size
    counts = checked_counts(sizes, size, caller.operation, name)
    if sum(counts) != rows:
        raise caller.error(name, f"sizes that add up to the {rows} rows of {argument}", f"{list(counts)}")
    return counts
