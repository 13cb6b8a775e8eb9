"""Differentiable collectives, with the names and signatures of ``torch.distributed.nn``. They return new tensors.

A gradient is the derivative of the sum of all ranks' losses. Each collective is a linear map of the ranks' tensors, and
its adjoint is a collective too: that of a broadcast is a sum at the source, that of a gather is a scatter, that of an
all-gather is a reduce-scatter. ``backward`` carries out the adjoint. So all ranks of the group must call ``backward``,
for the same outputs and in the same order. Second derivatives work in the same way.

If only the root has a result, the other ranks get zeros. They call ``backward`` on these to take part. A function with
an ``output`` argument writes to it, and returns a tensor of the same memory that is part of the graph.

All ranks pass tensors of the same shape and dtype; integers work, but have no gradient. A reduction other than SUM, AVG
and PREMUL_SUM raises ArgumentError where a gradient is wanted. (torch returns a wrong one.) A rank outside the group
gets an ArgumentError. Other errors are those of ``mpicoll.torch``'s collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from mpicoll.arrays.dtypes import Op
from mpicoll.torch import collectives
from mpicoll.torch.caller import Caller, GivenOp, joined_caller, op_of
from mpicoll.torch.group import GivenGroup, ProcessGroup

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "gather", "reduce", "reduce_scatter",
    "scatter",
]  # fmt: skip

Tensors = Sequence[torch.Tensor]
Map = Callable[[Tensors, Tensors], object]
"""A collective, as a function of this rank's outputs, which it writes, and of this rank's inputs."""


class _Linear(torch.autograd.Function):
    """A map for the way forward and its adjoint for the way back.

    Both know their group: ``backward`` may run in a thread that has no default group."""

    @staticmethod
    def forward(ctx: Any, there: Map, back: Map, outs: Tensors, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.there, ctx.back, ctx.shapes = there, back, [x.shape for x in xs]
        there(outs, xs)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        outs = [gradients[0].new_empty(shape) for shape in ctx.shapes]
        return None, None, None, *_linear(ctx.back, ctx.there, outs, gradients)


def _linear(there: Map, back: Map, outs: Tensors, xs: Tensors) -> tuple[torch.Tensor, ...]:
    # A caller's output gets no history: autograd sees a detached tensor, of the same memory and version counter.
    apply: Callable[..., tuple[torch.Tensor, ...]] = _Linear.apply
    return apply(there, back, [y.detach() for y in outs], *xs)


def broadcast(tensor: torch.Tensor, src: int, group: GivenGroup = None) -> torch.Tensor:
    """The source's ``tensor``. The other ranks pass any tensor of its shape and dtype."""
    caller = joined_caller("broadcast", group)
    maps = _Maps(caller.group, caller.root("src", src, None))
    return _linear(maps.broadcast, maps.reduce, _like(caller, tensor), [tensor])[0]


def reduce(tensor: torch.Tensor, dst: int, op: GivenOp = ReduceOp.SUM, group: GivenGroup = None) -> torch.Tensor:
    """The reduction of all ranks' ``tensor`` at the destination, zeros elsewhere."""
    caller = joined_caller("reduce", group)
    maps = _Maps(caller.group, caller.root("dst", dst, None), op)
    back = _times(_weight(caller, op, [tensor]), maps.broadcast)
    return _linear(maps.reduce, back, _like(caller, tensor), [tensor])[0]


def all_reduce(tensor: torch.Tensor, op: GivenOp = ReduceOp.SUM, group: GivenGroup = None) -> torch.Tensor:
    """The reduction of all ranks' ``tensor``."""
    caller = joined_caller("all_reduce", group)
    back = _times(_weight(caller, op, [tensor]), _Maps(caller.group).all_reduce)
    return _linear(_Maps(caller.group, op=op).all_reduce, back, _like(caller, tensor), [tensor])[0]


def gather(tensor: torch.Tensor, dst: int = 0, group: GivenGroup = None) -> tuple[torch.Tensor, ...]:
    """All ranks' ``tensor`` in rank order at the destination, zeros elsewhere."""
    caller = joined_caller("gather", group)
    maps = _Maps(caller.group, caller.root("dst", dst, None))
    return _linear(maps.gather, maps.scatter, _like(caller, tensor, caller.group.size()), [tensor])


def scatter(tensors: Sequence[torch.Tensor], src: int = 0, group: GivenGroup = None) -> torch.Tensor:
    """The source's ``tensors[rank]``. The other ranks pass a list of any tensors of the same shape and dtype."""
    caller = joined_caller("scatter", group)
    maps = _Maps(caller.group, caller.root("src", src, None))
    xs = caller.tensors("tensors", tensors)
    return _linear(maps.scatter, maps.gather, _like(caller, xs[0]), xs)[0]


def all_gather(tensor: torch.Tensor, group: GivenGroup = None) -> tuple[torch.Tensor, ...]:
    """All ranks' ``tensor``, in rank order."""
    caller = joined_caller("all_gather", group)
    maps = _Maps(caller.group)
    return _linear(maps.all_gather, maps.reduce_scatter, _like(caller, tensor, caller.group.size()), [tensor])


def reduce_scatter(
    output: torch.Tensor, input_list: Sequence[torch.Tensor], op: GivenOp = ReduceOp.SUM, group: GivenGroup = None
) -> torch.Tensor:
    """The reduction of all ranks' ``input_list[rank]``, in the memory of ``output``."""
    caller = joined_caller("reduce_scatter", group)
    maps = _Maps(caller.group, op=op)
    xs = caller.tensors("input_list", input_list, caller.tensor("output", output))
    return _linear(maps.reduce_scatter, _times(_weight(caller, op, xs), maps.all_gather), [output], xs)[0]


def _all_gather_base(output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: GivenGroup = None) -> torch.Tensor:
    """All ranks' ``input_tensor`` one after another, in the memory of ``output_tensor``."""
    caller = joined_caller("all_gather_into_tensor", group)
    maps = _Maps(caller.group)
    caller.tensor("output_tensor", output_tensor)
    caller.tensor("input_tensor", input_tensor)
    return _linear(maps.all_gather_single, maps.reduce_scatter_single, [output_tensor], [input_tensor])[0]


def all_to_all(
    output_tensor_list: Sequence[torch.Tensor], input_tensor_list: Sequence[torch.Tensor], group: GivenGroup = None
) -> tuple[torch.Tensor, ...]:
    """All ranks' ``input_tensor_list[rank]``, in the memory of the tensors of ``output_tensor_list``."""
    caller = joined_caller("all_to_all", group)
    maps = _Maps(caller.group)
    xs = caller.tensors("input_tensor_list", input_tensor_list, shapes=False)
    outs = caller.tensors("output_tensor_list", output_tensor_list, xs[0], shapes=False, written=True)
    return _linear(maps.all_to_all, maps.all_to_all, outs, xs)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: GivenGroup = None,
) -> torch.Tensor:
    """The block of rows that each rank's ``input`` has for this rank, in the memory of ``output``.

    Without split sizes the blocks are equal."""
    caller = joined_caller("all_to_all_single", group)
    caller.tensor("output", output)
    caller.tensor("input", input)
    there = _Maps(caller.group, sizes=(output_split_sizes, input_split_sizes)).all_to_all_single
    back = _Maps(caller.group, sizes=(input_split_sizes, output_split_sizes)).all_to_all_single
    return _linear(there, back, [output], [input])[0]


class _Maps(NamedTuple):
    """The collectives of a group as maps. Those that go to one rank write zeros on all others."""

    g: ProcessGroup
    root: int = 0
    op: GivenOp = ReduceOp.SUM
    sizes: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None)
    """The rows of each block that is received, and of each that is sent."""

    def broadcast(self, outs: Tensors, xs: Tensors) -> None:
        if self.g.rank() == self.root:
            outs[0].copy_(xs[0])
        collectives.broadcast(outs[0], group=self.g, group_src=self.root)

    def reduce(self, outs: Tensors, xs: Tensors) -> None:
        collectives.reduce(outs[0].copy_(xs[0]), op=self.op, group=self.g, group_dst=self.root)
        if self.g.rank() != self.root:
            outs[0].zero_()

    def gather(self, outs: Tensors, xs: Tensors) -> None:
        collectives.gather(xs[0], outs if self.g.rank() == self.root else None, group=self.g, group_dst=self.root)
        if self.g.rank() != self.root:
            for y in outs:
                y.zero_()

    def scatter(self, outs: Tensors, xs: Tensors) -> None:
        collectives.scatter(outs[0], xs if self.g.rank() == self.root else None, group=self.g, group_src=self.root)

    def all_reduce(self, outs: Tensors, xs: Tensors) -> None:
        collectives.all_reduce(outs[0].copy_(xs[0]), self.op, self.g)

    def all_gather(self, outs: Tensors, xs: Tensors) -> None:
        collectives.all_gather(outs, xs[0], self.g)

    def reduce_scatter(self, outs: Tensors, xs: Tensors) -> None:
        collectives.reduce_scatter(outs[0], xs, self.op, self.g)

    def all_gather_single(self, outs: Tensors, xs: Tensors) -> None:
        collectives.all_gather_into_tensor(outs[0], xs[0], self.g)

    def reduce_scatter_single(self, outs: Tensors, xs: Tensors) -> None:
        collectives.reduce_scatter_tensor(outs[0], xs[0], group=self.g)

    def all_to_all(self, outs: Tensors, xs: Tensors) -> None:
        collectives.all_to_all(outs, xs, self.g)

    def all_to_all_single(self, outs: Tensors, xs: Tensors) -> None:
        collectives.all_to_all_single(outs[0], xs[0], *self.sizes, self.g)


def _times(weight: complex, run: Map) -> Map:
    """The map, with its outputs multiplied by ``weight``, which may differ from rank to rank."""
    if weight == 1:
        return run

    def scaled(outs: Tensors, xs: Tensors) -> None:
        run(outs, xs)
        for y in outs:
            y.mul_(weight)

    return scaled


def _weight(caller: Caller, op: GivenOp, xs: Tensors) -> complex:
    """The factor of this rank's gradient in a reduction with ``op``.

    Raises ArgumentError if a gradient is wanted and the reduction has none."""
    known = op_of(op, caller.operation)
    if isinstance(known, Op):
        assert known.factor is not None
        return known.factor.conjugate()
    if known not in ("sum", "avg") and torch.is_grad_enabled() and any(x.requires_grad for x in xs):
        raise caller.error("op", "SUM, AVG or PREMUL_SUM, which have a gradient", repr(op))
    return 1 / caller.group.size() if known == "avg" else 1


def _like(caller: Caller, x: Any, n: int = 1) -> list[torch.Tensor]:
    """``n`` new tensors like ``x``, the argument ``tensor``."""
    tensor = caller.tensor("tensor", x).detach()
    return [tensor.new_empty(tensor.shape) for _ in range(n)]
