"""Collectives of tensors. What they have in common:

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
  group was destroyed or there is no default group. The rank at fault raises it before any data moves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp

from mpicoll.calls.arguments import checked_counts, sequence_of
from mpicoll.communicator.repeated import repeated_function
from mpicoll.torch.caller import Caller, GivenOp, caller_of, op_of
from mpicoll.torch.group import GivenGroup
from mpicoll.torch.making import make
from mpicoll.torch.work import Work

_NO_ARRAY: dict[str, str] = {}
_IN_PLACE = {"x": "tensor"}
_GATHERED = {"x": "input_tensor", "out": "output_tensor"}
_SCATTERED = {"xs": "input", "out": "output"}
_EXCHANGED = {**_SCATTERED, "sendcounts": "input_split_sizes", "recvcounts": "output_split_sizes"}
_ALL_GATHERED_LIST = {"x": "tensor", "out": "tensor_list"}
_GATHERED_LIST = {"x": "tensor", "out": "gather_list"}
_SCATTERED_LIST = {"xs": "scatter_list", "out": "tensor"}
_REDUCED_LIST = {"xs": "input_list", "out": "output"}
_EXCHANGED_LISTS = {"xs": "input_tensor_list", "out": "output_tensor_list"}
"""The Communicator's names of arguments, and the names of them here."""


@repeated_function("allreduce", tensor="x")
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
    rounded once. Complex numbers work with PRODUCT too, which torch's function refuses."""
    caller = caller_of("all_reduce", group)
    return make(caller, _IN_PLACE, async_op, "allreduce", tensor, None, op_of(op, "all_reduce"), 0, algorithm)


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
    return make(caller, _IN_PLACE, async_op, "bcast", tensor, None, None, root, algorithm)


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

    The other ranks' tensors stay as they were. (gloo leaves partial results in them.)"""
    caller = caller_of("reduce", group)
    if caller is None:
        return None
    root = caller.root("dst", dst, group_dst)
    return make(caller, _IN_PLACE, async_op, "reduce", tensor, None, op_of(op, "reduce"), root, algorithm)


@repeated_function("allgather", input_tensor="x", output_tensor="out")
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
    may be this rank's part of it."""
    caller = caller_of("all_gather_into_tensor", group)
    return make(caller, _GATHERED, async_op, "allgather", input_tensor, output_tensor, None, 0, algorithm)


@repeated_function("reduce_scatter", input="x", output="out")
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
    ``output`` may be this rank's block of it. Dtypes and operations are those of :func:`all_reduce`."""
    caller = caller_of("reduce_scatter_tensor", group)
    how = op_of(op, "reduce_scatter_tensor")
    return make(caller, _SCATTERED, async_op, "reduce_scatter", input, output, how, 0, algorithm)


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
    size than it expects."""
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
    return make(caller, _EXCHANGED, async_op, "alltoallv", input, output, None, 0, algorithm, sent, expected)


def barrier(
    group: GivenGroup = None,
    async_op: bool = False,
    device_ids: Any = None,
    timeout: timedelta | None = None,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Wait until all ranks of the group have called this. With ``async_op`` the Work's ``wait`` does that.

    ``device_ids`` and ``timeout`` change nothing here. A blocking MPI call has no timeout: use
    :func:`mpicoll.torch.monitored_barrier`, or ``async_op`` and the Work's ``wait(timeout)``."""
    caller = caller_of("barrier", group)
    return make(caller, _NO_ARRAY, async_op, "barrier", None, None, None, 0, algorithm)


# -- lists: one tensor for each rank of the group --------------------------------------------------------------------


@repeated_function("all_gather_list", tensor="x", tensor_list="out")
def all_gather(
    tensor_list: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    group: GivenGroup = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """``tensor_list[r]`` becomes rank r's ``tensor``. It has the shape, dtype and device of ``tensor``."""
    caller = caller_of("all_gather", group)
    return make(caller, _ALL_GATHERED_LIST, async_op, "all_gather_list", tensor, tensor_list, None, 0, algorithm)


def gather(
    tensor: torch.Tensor,
    gather_list: Sequence[torch.Tensor] | None = None,
    dst: int | None = None,
    group: GivenGroup = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """The destination's ``gather_list[r]`` becomes rank r's ``tensor``. The other ranks pass None or an empty list.

    ``dst`` is rank 0 if neither ``dst`` nor ``group_dst`` is given. Shapes, dtypes and devices are as in
    :func:`all_gather`."""
    caller = caller_of("gather", group)
    if caller is None:
        return None
    root = caller.root("dst", dst, group_dst, default=0)
    return make(caller, _GATHERED_LIST, async_op, "gather_list", tensor, gather_list, None, root, algorithm)


def scatter(
    tensor: torch.Tensor,
    scatter_list: Sequence[torch.Tensor] | None = None,
    src: int | None = None,
    group: GivenGroup = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Rank r's ``tensor`` becomes the source's ``scatter_list[r]``. The other ranks pass None or an empty list.

    ``src`` is rank 0 if neither ``src`` nor ``group_src`` is given. Shapes, dtypes and devices are as in
    :func:`all_gather`."""
    caller = caller_of("scatter", group)
    if caller is None:
        return None
    root = caller.root("src", src, group_src, default=0)
    return make(caller, _SCATTERED_LIST, async_op, "scatter_list", scatter_list, tensor, None, root, algorithm)


@repeated_function("reduce_scatter_list", input_list="x", output="out")
def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: GivenOp = ReduceOp.SUM,
    group: GivenGroup = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Rank r's ``output`` becomes the reduction of all ranks' ``input_list[r]``.

    The tensors of ``input_list`` have the dtype and device of ``output``, and rank r's ``output`` has the shape of
    ``input_list[r]``. Dtypes and operations are those of ``all_reduce``."""
    caller = caller_of("reduce_scatter", group)
    how = op_of(op, "reduce_scatter")
    return make(caller, _REDUCED_LIST, async_op, "reduce_scatter_list", input_list, output, how, 0, algorithm)


@repeated_function("all_to_all_list", input_tensor_list="x", output_tensor_list="out")
def all_to_all(
    output_tensor_list: Sequence[torch.Tensor],
    input_tensor_list: Sequence[torch.Tensor],
    group: GivenGroup = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Send ``input_tensor_list[r]`` to rank r. ``output_tensor_list[r]`` becomes what rank r sent to this rank.

    All tensors have one dtype and one device. Their sizes may differ from pair to pair of ranks. A rank raises
    MessageError if another one sends it a tensor of another size than it expects."""
    caller = caller_of("all_to_all", group)
    ends = input_tensor_list, output_tensor_list
    return make(caller, _EXCHANGED_LISTS, async_op, "all_to_all_list", *ends, None, 0, algorithm)


# -- arguments --------------------------------------------------------------------------------------------------------


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
