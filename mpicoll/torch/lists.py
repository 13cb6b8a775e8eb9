"""Collectives of lists of tensors, one tensor for each rank of the group.

A list travels as one tensor, into which and out of which its tensors are copied. Lists of less than 8 MiB share one of
the group, which serves again for other tensors of these shapes. What these functions share with the other collectives,
such as the meaning of ``group`` and ``async_op``, is in :mod:`mpicoll.torch.collectives`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.distributed import ReduceOp

from mpicoll.node.loaded import kernel
from mpicoll.torch.caller import NEW, Caller, GivenOp, caller_of
from mpicoll.torch.collectives import Lists, carried_out
from mpicoll.torch.group import ProcessGroup
from mpicoll.torch.memory import new
from mpicoll.torch.work import Work
from mpicoll.torch.world import GivenGroup

if TYPE_CHECKING:
    from mpicoll.node.kernel import PackedList

Given: TypeAlias = torch.Tensor | list[torch.Tensor]


class Whole(NamedTuple):
    """The tensor that travels, and the part of it that belongs to each tensor of a list. It may serve the next call."""

    tensor: torch.Tensor | None
    parts: list[torch.Tensor]
    serves_again: bool


_GATHERED = {"x": "tensor"}
_SCATTERED = {"xs": "scatter_list", "out": "tensor"}
_REDUCED = {"xs": "input_list", "out": "output"}
_EXCHANGED = {"xs": "input_tensor_list", "out": "output_tensor_list"}
"""The Communicator's names of arguments, and the names of them here."""
_LONG = 8 << 20
"""Bytes of a list that travels in memory that the ranks share, and not in the group's. The system gives new memory of
such a length page by page, and that takes several times as long as to copy it."""
_LEAST = 256 << 10
"""Bytes of the shortest list whose tensors travel as they lie, if they lie one after another."""


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
    if (known := caller.repeated(async_op, "all_gather_list", tensor, tensor_list, None, 0, algorithm)) is not NEW:
        return known
    caller.memory("tensor", tensor)
    outs = caller.outputs("tensor_list", tensor_list, tensor)
    return _carried_out(caller, "allgather", tensor, outs, async_op, algorithm, _GATHERED)


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
    g, root = caller.group, caller.root("dst", dst, group_dst, default=0)
    outs: Any = [] if gather_list is None else gather_list
    if (known := caller.repeated(async_op, "gather_list", tensor, outs, None, root, algorithm)) is not NEW:
        return known
    caller.memory("tensor", tensor)
    if g.rank() == root:
        outs = caller.outputs("gather_list", gather_list, tensor)
    else:
        caller.no_list("gather_list", gather_list, "destination", root)
        outs = []
    return _carried_out(caller, "gather", tensor, outs, async_op, algorithm, _GATHERED, root=root)


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
    g, root = caller.group, caller.root("src", src, group_src, default=0)
    if (known := caller.repeated(async_op, "scatter_list", scatter_list, tensor, None, root, algorithm)) is not NEW:
        return known
    caller.memory("tensor", tensor)
    ins: list[torch.Tensor] = []
    if g.rank() == root:
        ins = caller.tensors("scatter_list", scatter_list, tensor)
    else:
        caller.no_list("scatter_list", scatter_list, "source", root)
    return _carried_out(caller, "scatter", ins, tensor, async_op, algorithm, _SCATTERED, root=root)


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
    how = caller.op(op)
    if (known := caller.repeated(async_op, "reduce_scatter_list", input_list, output, how, 0, algorithm)) is not NEW:
        return known
    caller.memory("output", output)
    g, tensors = caller.group, caller.tensors("input_list", input_list, output, shapes=False)
    if (shape := tensors[g.rank()].shape) != output.shape:
        raise caller.error(f"input_list[{g.rank()}]", f"shape {tuple(output.shape)}", f"{tuple(shape)}")
    if all(x.shape == shape for x in tensors):
        return _carried_out(caller, "reduce_scatter", tensors, output, async_op, algorithm, _REDUCED, how)
    counts = [[x.numel() for x in tensors]]
    return _carried_out(caller, "reduce_scatterv", tensors, output, async_op, algorithm, _REDUCED, how, counts=counts)


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
    ends = input_tensor_list, output_tensor_list
    if (known := caller.repeated(async_op, "all_to_all_list", *ends, None, 0, algorithm)) is not NEW:
        return known
    outs = caller.outputs("output_tensor_list", output_tensor_list, shapes=False)
    ins = caller.tensors("input_tensor_list", input_tensor_list, outs[0], shapes=False)
    counts = [x.numel() for x in ins], [x.numel() for x in outs]
    return _carried_out(caller, "alltoallv", ins, outs, async_op, algorithm, _EXCHANGED, counts=counts)


def _carried_out(
    caller: Caller,
    collective: str,
    given: Given,
    taken: Given,
    async_op: bool,
    algorithm: str | None,
    names: dict[str, str],
    op: Any = None,
    root: int = 0,
    counts: Sequence[Sequence[int]] = (),
) -> Work | None:
    """Carry out a collective from ``given`` to ``taken``. An empty list stands for nothing. The rest is as in
    :func:`mpicoll.torch.collectives.carried_out`."""
    g, ins, outs = caller.group, _listed(given), _listed(taken)
    x = _one_of(ins, outs) or _whole(g, 0, given, bool(counts))
    out = _one_of(outs, ins) or _whole(g, 1, taken, bool(counts))
    lists = Lists(ins, partial(_copy, x, ins, False), outs, partial(_copy, out, outs, True))
    one_each = not (async_op or x.parts or out.parts)
    if one_each and caller.repeated(False, collective, x.tensor, out.tensor, op, root, algorithm, *counts) is not NEW:
        return None
    work = carried_out(caller, collective, x.tensor, out.tensor, async_op, algorithm, names, op, root, counts, lists)
    _let_it_repeat(caller, collective, (given, taken), (x, out), op, root, algorithm, counts)
    return work


def _let_it_repeat(
    caller: Caller,
    collective: str,
    ends: tuple[Given, Given],
    wholes: tuple[Whole, Whole],
    op: Any,
    root: int,
    algorithm: str | None,
    counts: Sequence[Sequence[int]],
) -> None:
    """Let the kernel make this call from now on, if each list travels in memory of the group's. It has a name of its
    own, because no other function takes lists."""
    if not all(whole.serves_again for whole in wholes):
        return

    def packed(whole: Whole) -> PackedList | None:
        there = whole.tensor
        return (there.data_ptr(), there.nbytes, there) if there is not None and whole.parts else None

    x, out = wholes
    engine, name = caller.group.engine, sys.intern(f"{caller.operation}_list")
    plan = engine.plan(collective, x.tensor, out.tensor, op, root, algorithm, *counts)
    given, taken = (end if isinstance(end, torch.Tensor) else end or None for end in ends)
    engine.keep(plan, (name, given, taken, op, root, algorithm), (packed(x), packed(out)))


def _listed(given: Given) -> list[torch.Tensor]:
    return [given] if isinstance(given, torch.Tensor) else given


def _one_of(tensors: list[torch.Tensor], others: list[torch.Tensor]) -> Whole | None:
    """The memory of a long list whose tensors lie one after another, as those of ``chunk`` do, and apart from the
    others."""
    if len(tensors) < 2 or not (first := tensors[0]).is_cpu or first.nbytes * len(tensors) < _LEAST:
        return None
    if kernel is None or not kernel.lie_together(tuple(tensors)):
        return None
    begin, end = first.data_ptr(), tensors[-1].data_ptr() + tensors[-1].nbytes
    for other in others:
        memory = other.untyped_storage()
        if memory.data_ptr() < end and begin < memory.data_ptr() + memory.nbytes():
            return None
    try:
        return Whole(first.detach().as_strided((sum(x.numel() for x in tensors),), (1,)), [], False)
    except RuntimeError:  # each has a storage of its own
        return None


def _whole(g: ProcessGroup, which: int, given: Given, flat: bool) -> Whole:
    """What travels in the place of a list of tensors: one with room for all, and its parts, of their shapes. A tensor
    travels itself, unless it must be ``flat`` and cannot be. Of a call's two lists, ``which`` says the one."""
    if isinstance(given, torch.Tensor):
        if not flat:
            return Whole(given, [], True)
        if given.is_contiguous():
            return Whole(given.detach().view(-1), [], True)
    tensors = _listed(given)
    if not tensors:
        return Whole(None, [], True)
    first = tensors[0]
    at = (which, first.dtype, *[x.shape for x in tensors])
    is_free = first.is_cpu and not g.inside  # else a signal's handler calls, while the memory is in use
    known: Whole | None = g.wholes.find(at) if is_free else None
    if known is not None:
        return known
    counts = [x.numel() for x in tensors]
    nbytes = sum(counts) * first.itemsize
    keeps = is_free and 0 < nbytes < _LONG
    if keeps:
        (memory,) = g.scratch[which].arrays(np.dtype(np.uint8), nbytes)
        whole = torch.from_numpy(memory).view(first.dtype)
    elif first.is_cpu and nbytes >= _LONG:
        whole = new(g, (sum(counts),), first.dtype)
    else:
        whole = first.detach().new_empty(sum(counts))
    parts = [part.view(x.shape) for part, x in zip(torch.split(whole, counts), tensors, strict=True)]
    made = Whole(whole, parts, keeps and isinstance(given, list))
    if keeps:
        g.wholes.keep(at, made)
    return made


def _copy(whole: Whole, tensors: list[torch.Tensor], back: bool) -> None:
    """Copy the tensors of a list to their parts, or ``back``."""
    there, parts, _ = whole
    if there is None or not parts:
        return
    if kernel is not None and there.is_cpu and kernel.pack(tuple(tensors), there.data_ptr(), there.nbytes, back):
        return
    for part, tensor in zip(parts, tensors, strict=True):
        target, source = (tensor, part) if back else (part, tensor)
        # A tensor that was made in this mode can be written to only in it.
        with torch.inference_mode() if target.is_inference() else nullcontext():
            target.detach().copy_(source.detach())
