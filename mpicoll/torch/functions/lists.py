"""Collectives of lists of tensors, one tensor for each rank of the group.

A list travels as one tensor, into which and out of which its tensors are copied. What these functions share with the
other collectives, such as the meaning of ``group`` and ``async_op``, is in :mod:`mpicoll.torch.functions.collectives`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod

import torch
from torch.distributed import ReduceOp

from mpicoll.torch.functions.caller import caller_of
from mpicoll.torch.functions.collectives import carried_out
from mpicoll.torch.functions.memory import new
from mpicoll.torch.functions.reduce_op import GivenOp
from mpicoll.torch.groups.group import ProcessGroup
from mpicoll.torch.groups.work import Work
from mpicoll.torch.groups.world import GivenGroup

__all__ = ["all_gather", "all_to_all", "gather", "reduce_scatter", "scatter"]

_GATHERED = {"x": "tensor"}
_SCATTERED = {"xs": "scatter_list", "out": "tensor"}
_REDUCED = {"xs": "input_list", "out": "output"}
_EXCHANGED = {"xs": "input_tensor_list", "out": "output_tensor_list"}
"""The Communicator's names of arguments, and the names of them here."""
_LONG = 8 << 20
"""Bytes of a list that travels in memory that the ranks share. The system gives new memory of such a length page by
page, and that takes several times as long as to copy it. For shorter lists the shared memory takes longer."""


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
    if caller is None:
        return None
    caller.memory("tensor", tensor)
    outs = caller.outputs("tensor_list", tensor_list, tensor)
    flat = _flat(caller.group, tensor, len(outs), *tensor.shape)
    copy = partial(_copy_out, flat, outs)
    return carried_out(caller, "allgather", tensor, flat, async_op, algorithm, _GATHERED, outs=outs, then=copy)


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
    :func:`all_gather`.
    """
    caller = caller_of("gather", group)
    if caller is None:
        return None
    caller.memory("tensor", tensor)
    g, root = caller.group, caller.root("dst", dst, group_dst, default=0)
    outs: list[torch.Tensor] = []
    flat = copy = None
    if g.rank() == root:
        outs = caller.outputs("gather_list", gather_list, tensor)
        flat = _flat(g, tensor, len(outs), *tensor.shape)
        copy = partial(_copy_out, flat, outs)
    else:
        caller.no_list("gather_list", gather_list, "destination", root)
    return carried_out(
        caller, "gather", tensor, flat, async_op, algorithm, _GATHERED, root=root, outs=outs, then=copy, given=[tensor]
    )


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
    :func:`all_gather`.
    """
    caller = caller_of("scatter", group)
    if caller is None:
        return None
    caller.memory("tensor", tensor)
    g, root = caller.group, caller.root("src", src, group_src, default=0)
    flat = None
    if g.rank() == root:
        flat = _stacked(g, caller.tensors("scatter_list", scatter_list, tensor))
    else:
        caller.no_list("scatter_list", scatter_list, "source", root)
    return carried_out(caller, "scatter", flat, tensor, async_op, algorithm, _SCATTERED, root=root)


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
    ``input_list[r]``. Dtypes and operations are those of ``all_reduce``.
    """
    caller = caller_of("reduce_scatter", group)
    if caller is None:
        return None
    caller.memory("output", output)
    how = caller.op(op)
    g, tensors = caller.group, caller.tensors("input_list", input_list, output, shapes=False)
    if (shape := tensors[g.rank()].shape) != output.shape:
        raise caller.error(f"input_list[{g.rank()}]", f"shape {tuple(output.shape)}", f"{tuple(shape)}")
    if all(x.shape == shape for x in tensors):
        flat = _stacked(g, tensors)
        return carried_out(caller, "reduce_scatter", flat, output, async_op, algorithm, _REDUCED, how)
    elements = [x.numel() for x in tensors]
    flat, mine = _flat(g, output, sum(elements)), _flat(g, output, output.numel())
    torch.cat([x.detach().reshape(-1) for x in tensors], out=flat)
    copy = partial(_copy_out, [mine], [output])
    return carried_out(
        caller, "reduce_scatterv", flat, mine, async_op, algorithm, _REDUCED, how,
        counts=[elements], outs=[output], then=copy,
    )  # fmt: skip


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
    MessageError if another one sends it a tensor of another size than it expects.
    """
    caller = caller_of("all_to_all", group)
    if caller is None:
        return None
    outs = caller.outputs("output_tensor_list", output_tensor_list, shapes=False)
    ins = caller.tensors("input_tensor_list", input_tensor_list, outs[0], shapes=False)
    sent, expected = counts = [x.numel() for x in ins], [x.numel() for x in outs]
    flat_in, flat_out = (_flat(caller.group, outs[0], sum(elements)) for elements in (sent, expected))
    torch.cat([x.detach().reshape(-1) for x in ins], out=flat_in)
    copy = partial(_copy_out, torch.split(flat_out, expected), outs)
    return carried_out(
        caller, "alltoallv", flat_in, flat_out, async_op, algorithm, _EXCHANGED, counts=counts, outs=outs, then=copy
    )


def _flat(group: ProcessGroup, like: torch.Tensor, *shape: int) -> torch.Tensor:
    """A new tensor of this shape for a list of tensors ``like`` this one."""
    shares = like.device.type == "cpu" and prod(shape) * like.itemsize >= _LONG
    return new(group, shape, like.dtype) if shares else like.detach().new_empty(shape)


def _stacked(group: ProcessGroup, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of the list as one tensor."""
    found = _flat(group, tensors[0], len(tensors), *tensors[0].shape)
    return torch.stack([x.detach() for x in tensors], out=found)


def _copy_out(blocks: Iterable[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copy a block to each tensor."""
    for block, tensor in zip(blocks, tensors, strict=True):
        tensor.detach().copy_(block.view(tensor.shape))
