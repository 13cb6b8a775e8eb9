"""Differentiable collectives, with the names and signatures of ``torch.distributed.nn``: tensors in, tensors out.

The derivative is that of all ranks' losses together. Each of these is a linear map of the ranks' tensors, and the
gradient goes back through its adjoint, which is one of them too: a broadcast's is a sum at its source, a gather's a
scatter, an all-gather's a reduce-scatter. So ``backward`` communicates: all ranks of the group call it, for the same
outputs and in the same order. Derivatives of derivatives work the same.

Where only the root has a result, the others get zeros, through which their ``backward`` takes part. An ``output`` is
written, and returned as part of the graph. Other arguments and errors are those of :mod:`mpicoll.torch.collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp

from mpicoll.arrays.dtypes import Op
from mpicoll.errors import ArgumentError
from mpicoll.torch import collectives
from mpicoll.torch.arguments import group_rank, op_of, outputs_of, tensor_of, tensors_of
from mpicoll.torch.group import ProcessGroup, joined

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]

Tensors = Sequence[torch.Tensor]
Map = Callable[[Tensors, Tensors], object]
"""Writes its first argument, this rank's outputs, from its second, this rank's inputs. Collective."""


class _Linear(torch.autograd.Function):
    """A map, and its adjoint for the way back. Both know their group: ``backward`` may run in a thread that knows of
    no default one."""

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
    # Detached, so that a caller's tensor gets no history of its own; its memory, and what counts its versions, is kept.
    apply: Callable[..., tuple[torch.Tensor, ...]] = _Linear.apply
    return apply(there, back, [y.detach() for y in outs], *xs)


# -- the functions ----------------------------------------------------------------------------------------------------


def broadcast(tensor: torch.Tensor, src: int, group: Any = None) -> torch.Tensor:
    """The source's ``tensor``; the others' only say its shape."""
    g = joined(group, "broadcast")
    root = group_rank(g, "broadcast", "src", src, None)
    return _linear(_broadcast(g, root), _reduce(g, root), _like(tensor, "broadcast"), [tensor])[0]


def reduce(tensor: torch.Tensor, dst: int, op: Any = ReduceOp.SUM, group: Any = None) -> torch.Tensor:
    """The reduction over all ranks at the destination, zeros elsewhere."""
    g = joined(group, "reduce")
    root = group_rank(g, "reduce", "dst", dst, None)
    back = _times(_weight(g, op, "reduce", [tensor]), _broadcast(g, root))
    return _linear(_reduce(g, root, op), back, _like(tensor, "reduce"), [tensor])[0]


def all_reduce(tensor: torch.Tensor, op: Any = ReduceOp.SUM, group: Any = None) -> torch.Tensor:
    """The reduction over all ranks."""
    g = joined(group, "all_reduce")
    back = _times(_weight(g, op, "all_reduce", [tensor]), _all_reduce(g))
    return _linear(_all_reduce(g, op), back, _like(tensor, "all_reduce"), [tensor])[0]


def gather(tensor: torch.Tensor, dst: int = 0, group: Any = None) -> tuple[torch.Tensor, ...]:
    """Every rank's ``tensor`` at the destination, zeros elsewhere."""
    g = joined(group, "gather")
    root = group_rank(g, "gather", "dst", dst, None)
    return _linear(_gather(g, root), _scatter(g, root), _like(tensor, "gather", g.size()), [tensor])


def scatter(tensors: Sequence[torch.Tensor], src: int = 0, group: Any = None) -> torch.Tensor:
    """Rank r gets the source's ``tensors[r]``. Every rank passes a list: the others' only say the shape."""
    g = joined(group, "scatter")
    root = group_rank(g, "scatter", "src", src, None)
    xs = _alike(tensors, "scatter", "tensors", g)
    return _linear(_scatter(g, root), _gather(g, root), _like(xs[0], "scatter"), xs)[0]


def all_gather(tensor: torch.Tensor, group: Any = None) -> tuple[torch.Tensor, ...]:
    """Every rank's ``tensor``."""
    g = joined(group, "all_gather")
    return _linear(_all_gather(g), _reduce_scatter(g), _like(tensor, "all_gather", g.size()), [tensor])


def reduce_scatter(
    output: torch.Tensor, input_list: Sequence[torch.Tensor], op: Any = ReduceOp.SUM, group: Any = None
) -> torch.Tensor:
    """The reduction over all ranks of their ``input_list[rank]``, in ``output``."""
    g = joined(group, "reduce_scatter")
    tensor_of(output, "reduce_scatter", "output")
    xs = tensors_of(input_list, "reduce_scatter", "input_list", g.size(), output)
    back = _times(_weight(g, op, "reduce_scatter", xs), _all_gather(g))
    return _linear(_reduce_scatter(g, op), back, [output], xs)[0]


def _all_gather_base(output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Every rank's ``input_tensor`` in one tensor, ``output_tensor``."""
    g = joined(group, "all_gather_into_tensor")
    tensor_of(output_tensor, "all_gather_into_tensor", "output_tensor")
    tensor_of(input_tensor, "all_gather_into_tensor", "input_tensor")
    return _linear(_all_gather_into_tensor(g), _reduce_scatter_tensor(g), [output_tensor], [input_tensor])[0]


def all_to_all(
    output_tensor_list: Sequence[torch.Tensor], input_tensor_list: Sequence[torch.Tensor], group: Any = None
) -> tuple[torch.Tensor, ...]:
    """Every rank's ``input_tensor_list[rank]``, in the tensors of ``output_tensor_list``."""
    g = joined(group, "all_to_all")
    xs = _alike(input_tensor_list, "all_to_all", "input_tensor_list", g, shapes=False)
    outs = outputs_of(output_tensor_list, "all_to_all", "output_tensor_list", g.size(), xs[0], shapes=False)
    return _linear(_all_to_all(g), _all_to_all(g), outs, xs)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
) -> torch.Tensor:
    """Every rank's block of rows for this one, in ``output``. Without split sizes the blocks are equal."""
    g = joined(group, "all_to_all_single")
    tensor_of(output, "all_to_all_single", "output")
    tensor_of(input, "all_to_all_single", "input")
    there = _all_to_all_single(g, output_split_sizes, input_split_sizes)
    back = _all_to_all_single(g, input_split_sizes, output_split_sizes)
    return _linear(there, back, [output], [input])[0]


# -- the maps ---------------------------------------------------------------------------------------------------------


def _broadcast(g: ProcessGroup, root: int) -> Map:
    def run(outs: Tensors, xs: Tensors) -> None:
        if g.rank() == root:
            outs[0].copy_(xs[0])
        collectives.broadcast(outs[0], group=g, group_src=root)

    return run


def _reduce(g: ProcessGroup, root: int, op: Any = ReduceOp.SUM) -> Map:
    def run(outs: Tensors, xs: Tensors) -> None:
        collectives.reduce(outs[0].copy_(xs[0]), op=op, group=g, group_dst=root)
        if g.rank() != root:
            outs[0].zero_()

    return run


def _gather(g: ProcessGroup, root: int) -> Map:
    def run(outs: Tensors, xs: Tensors) -> None:
        collectives.gather(xs[0], outs if g.rank() == root else None, group=g, group_dst=root)
        if g.rank() != root:
            for y in outs:
                y.zero_()

    return run


def _scatter(g: ProcessGroup, root: int) -> Map:
    return lambda outs, xs: collectives.scatter(outs[0], xs if g.rank() == root else None, group=g, group_src=root)


def _all_reduce(g: ProcessGroup, op: Any = ReduceOp.SUM) -> Map:
    return lambda outs, xs: collectives.all_reduce(outs[0].copy_(xs[0]), op, g)


def _all_gather(g: ProcessGroup) -> Map:
    return lambda outs, xs: collectives.all_gather(outs, xs[0], g)


def _reduce_scatter(g: ProcessGroup, op: Any = ReduceOp.SUM) -> Map:
    return lambda outs, xs: collectives.reduce_scatter(outs[0], xs, op, g)


def _all_gather_into_tensor(g: ProcessGroup) -> Map:
    return lambda outs, xs: collectives.all_gather_into_tensor(outs[0], xs[0], g)


def _reduce_scatter_tensor(g: ProcessGroup) -> Map:
    return lambda outs, xs: collectives.reduce_scatter_tensor(outs[0], xs[0], group=g)


def _all_to_all(g: ProcessGroup) -> Map:
    return lambda outs, xs: collectives.all_to_all(outs, xs, g)


def _all_to_all_single(g: ProcessGroup, of: Sequence[int] | None, to: Sequence[int] | None) -> Map:
    return lambda outs, xs: collectives.all_to_all_single(outs[0], xs[0], of, to, g)


def _times(weight: complex, run: Map) -> Map:
    """The map, times a number of this rank's."""
    if weight == 1:
        return run

    def scaled(outs: Tensors, xs: Tensors) -> None:
        run(outs, xs)
        for y in outs:
            y.mul_(weight)

    return scaled


def _weight(g: ProcessGroup, op: Any, operation: str, xs: Tensors) -> complex:
    """What a reduction multiplies this rank's gradient with. ArgumentError where one is wanted and ``op`` has none."""
    known = op_of(op, operation)
    if isinstance(known, Op):
        assert known.factor is not None
        return known.factor.conjugate()
    if known not in ("sum", "avg") and torch.is_grad_enabled() and any(x.requires_grad for x in xs):
        raise ArgumentError(operation, "op", "SUM, AVG or PREMUL_SUM, which have a gradient", repr(op))
    return 1 / g.size() if known == "avg" else 1


# -- arguments --------------------------------------------------------------------------------------------------------


def _like(x: Any, operation: str, n: int = 1) -> list[torch.Tensor]:
    """``n`` new tensors like ``x``."""
    tensor = tensor_of(x, operation, "tensor").detach()
    return [tensor.new_empty(tensor.shape) for _ in range(n)]


def _alike(xs: Any, operation: str, argument: str, g: ProcessGroup, shapes: bool = True) -> list[torch.Tensor]:
    """``xs``, if they are a tensor for each rank."""
    first = xs[0] if isinstance(xs, Sequence) and len(xs) and isinstance(xs[0], torch.Tensor) else torch.empty(0)
    return tensors_of(xs, operation, argument, g.size(), first, shapes)
