"""Collectives of tensors, with torch.distributed's names and signatures.

Every collective is a blocking MPI call: MPI forbids that it meets a non-blocking one, while torch lets some ranks pass
``async_op=True`` and others not. An asynchronous one runs on its group's thread, and returns a Work; a synchronous one
queues behind those and returns None. A rank that is not in the group is warned, and takes no part.

Arguments: ``group`` None is the default group; ``src`` and ``dst`` are global ranks, ``group_src`` and ``group_dst``
ranks of the group. ``algorithm``, which torch has not, is a name that ``mpicoll algorithms`` lists; None leaves it to
mpicoll. Errors are mpicoll's, raised on the rank at fault before any data moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch
from torch.autograd import profiler
from torch.distributed import ReduceOp

from mpicoll.calls.arguments import checked_counts
from mpicoll.errors import ArgumentError, StateError
from mpicoll.torch.arguments import group_rank, memory_of, op_of, outputs_of, tensor_of, tensors_of
from mpicoll.torch.group import ProcessGroup, member, renamed, world
from mpicoll.torch.work import Work

__all__ = [
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
]


def all_reduce(
    tensor: torch.Tensor,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Reduce ``tensor`` over the group; every rank's becomes the result."""
    g = world().default if group is None else group
    how = op_of(op, "all_reduce")
    plain = not async_op and not profiler._is_profiler_enabled
    if plain and isinstance(g, ProcessGroup) and isinstance(tensor, torch.Tensor) and g.worker.idle():
        if outer := g.inside:
            g.called_by_two()
        g.inside = get_ident()
        try:
            g.comm.allreduce(tensor, how, tensor, algorithm)  # the short way of the call that matters most
        except ArgumentError as e:
            raise renamed(e, "all_reduce", {"x": "tensor"}) from None
        except StateError:
            member(group, "all_reduce")  # says which group it is
            raise
        finally:
            g.inside = outer
        return None
    m = member(group, "all_reduce")
    if m is None:
        return None
    return _whole(m, "all_reduce", "allreduce", tensor, None, how, 0, async_op, algorithm=algorithm)


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Every rank's ``tensor`` becomes the source's."""
    g = member(group, "broadcast")
    if g is None:
        return None
    root = group_rank(g, "broadcast", "src", src, group_src)
    return _whole(g, "broadcast", "bcast", tensor, None, None, root, async_op, algorithm=algorithm)


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Reduce ``tensor`` over the group; the destination's becomes the result, the others' are unchanged."""
    g = member(group, "reduce")
    if g is None:
        return None
    root = group_rank(g, "reduce", "dst", dst, group_dst)
    return _whole(g, "reduce", "reduce", tensor, None, op_of(op, "reduce"), root, async_op, algorithm=algorithm)


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """``output_tensor`` (size times the input's elements) becomes every rank's ``input_tensor``, in rank order."""
    g = member(group, "all_gather_into_tensor")
    if g is None:
        return None
    names = {"x": "input_tensor", "out": "output_tensor"}
    tensor_of(output_tensor, "all_gather_into_tensor", "output_tensor")
    return _whole(
        g,
        "all_gather_into_tensor",
        "allgather",
        input_tensor,
        output_tensor,
        None,
        0,
        async_op,
        names,
        algorithm=algorithm,
    )


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """``output`` becomes this rank's block of the reduction of ``input`` (size times the output's elements)."""
    g = member(group, "reduce_scatter_tensor")
    if g is None:
        return None
    tensor_of(output, "reduce_scatter_tensor", "output")
    how = op_of(op, "reduce_scatter_tensor")
    return _whole(g, "reduce_scatter_tensor", "reduce_scatter", input, output, how, 0, async_op, algorithm=algorithm)


# What torch calls them since 2.13.
all_gather_single, reduce_scatter_single = all_gather_into_tensor, reduce_scatter_tensor


def _whole(
    g: ProcessGroup,
    operation: str,
    collective: str,
    given: Any,
    out: torch.Tensor | None,
    op: Any,
    root: int,
    async_op: bool,
    names: dict[str, str] | None = None,
    algorithm: str | None = None,
) -> Work | None:
    """A collective of one tensor in and one, perhaps the same, out; ``names`` are the caller's of ``x`` and ``out``."""
    names = names or ({"x": "tensor"} if out is None else {"x": "input", "out": "output"})
    tensor = tensor_of(given, operation, names["x"])
    plan = g.plan(operation, names, collective, tensor, out, op=op, root=root, algorithm=algorithm)

    def run(_keep: Any = (tensor, out)) -> None:  # a plan holds addresses: this keeps what lies there
        g.comm.carry_out(plan, operation)

    return g.do(operation, run, [tensor if out is None else out], async_op)


def all_gather(
    tensor_list: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """``tensor_list[r]`` becomes rank r's ``tensor``. All ranks' shapes and dtypes are equal, or MessageError."""
    g = member(group, "all_gather")
    if g is None:
        return None
    memory_of(tensor, "all_gather", "tensor")
    outs = outputs_of(tensor_list, "all_gather", "tensor_list", g.size(), tensor)
    flat = tensor.detach().new_empty((g.size(), *tensor.shape))
    plan = g.plan("all_gather", {"x": "tensor"}, "allgather", tensor, flat, algorithm=algorithm)

    def run(_keep: Any = tensor) -> None:
        g.agreement.alike("all_gather", tensor)
        g.comm.carry_out(plan, "all_gather")
        _hand_out(flat, outs)

    return g.do("all_gather", run, outs, async_op)


def gather(
    tensor: torch.Tensor,
    gather_list: Sequence[torch.Tensor] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """The destination's ``gather_list[r]`` becomes rank r's ``tensor``; the other ranks pass no list."""
    g = member(group, "gather")
    if g is None:
        return None
    memory_of(tensor, "gather", "tensor")
    root = group_rank(g, "gather", "dst", dst, group_dst, default=0)
    outs: list[torch.Tensor] = []
    flat = None
    if g.rank() == root:
        outs = outputs_of(gather_list, "gather", "gather_list", g.size(), tensor)
        flat = tensor.detach().new_empty((g.size(), *tensor.shape))
    else:
        _no_list(g, "gather", "gather_list", gather_list, "destination", root)
    plan = g.plan("gather", {"x": "tensor"}, "gather", tensor, flat, root=root, algorithm=algorithm)

    def run() -> None:
        g.agreement.alike("gather", tensor)
        g.comm.carry_out(plan, "gather")
        if flat is not None:
            _hand_out(flat, outs)

    return g.do("gather", run, outs, async_op, [tensor])


def scatter(
    tensor: torch.Tensor,
    scatter_list: Sequence[torch.Tensor] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Rank r's ``tensor`` becomes the source's ``scatter_list[r]``; the other ranks pass no list, or an empty one."""
    g = member(group, "scatter")
    if g is None:
        return None
    memory_of(tensor, "scatter", "tensor")
    root = group_rank(g, "scatter", "src", src, group_src, default=0)
    flat = None
    if g.rank() == root:
        flat = _together(tensors_of(scatter_list, "scatter", "scatter_list", g.size(), tensor))
    else:
        _no_list(g, "scatter", "scatter_list", scatter_list, "source", root)
    plan = g.plan(
        "scatter", {"x": "scatter_list", "out": "tensor"}, "scatter", flat, tensor, root=root, algorithm=algorithm
    )

    def run(_keep: Any = flat) -> None:
        g.agreement.alike("scatter", tensor)
        g.comm.carry_out(plan, "scatter")

    return g.do("scatter", run, [tensor], async_op)


def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: Any = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """``output`` becomes the reduction over all ranks of their ``input_list[rank]``."""
    g = member(group, "reduce_scatter")
    if g is None:
        return None
    memory_of(output, "reduce_scatter", "output")
    how = op_of(op, "reduce_scatter")
    flat = _together(tensors_of(input_list, "reduce_scatter", "input_list", g.size(), output))
    names = {"x": "input_list", "out": "output"}
    return _whole(g, "reduce_scatter", "reduce_scatter", flat, output, how, 0, async_op, names, algorithm=algorithm)


def all_to_all(
    output_tensor_list: Sequence[torch.Tensor],
    input_tensor_list: Sequence[torch.Tensor],
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """``output_tensor_list[r]`` becomes rank r's ``input_tensor_list[rank]``; sizes may differ from pair to pair."""
    g = member(group, "all_to_all")
    if g is None:
        return None
    lists = output_tensor_list if isinstance(output_tensor_list, Sequence) else ()
    first = next((x for x in lists if isinstance(x, torch.Tensor)), torch.empty(0))
    outs = outputs_of(output_tensor_list, "all_to_all", "output_tensor_list", g.size(), first, shapes=False)
    ins = tensors_of(input_tensor_list, "all_to_all", "input_tensor_list", g.size(), first, shapes=False)
    flat_in = torch.cat([x.detach().reshape(-1) for x in ins])
    flat_out = flat_in.new_empty(sum(x.numel() for x in outs))
    counts_in, counts_out = [x.numel() for x in ins], [x.numel() for x in outs]
    names = {"x": "input_tensor_list", "out": "output_tensor_list"}
    counts = {"sendcounts": counts_in, "recvcounts": counts_out}
    plan = g.plan("all_to_all", names, "alltoallv", flat_in, flat_out, **counts, algorithm=algorithm)

    def run(_keep: Any = flat_in) -> None:
        g.agreement.meet("all_to_all", "output_tensor_list", counts_in, counts_out)
        g.comm.carry_out(plan, "all_to_all")
        _hand_out(torch.split(flat_out, counts_out), outs)

    return g.do("all_to_all", run, outs, async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
    *,
    algorithm: str | None = None,
) -> Work | None:
    """Rank r is given its block of ``input``'s rows, and ``output`` becomes the blocks of all ranks, in rank order.

    Without split sizes the blocks are equal.
    """
    g = member(group, "all_to_all_single")
    if g is None:
        return None
    memory_of(input, "all_to_all_single", "input")
    memory_of(output, "all_to_all_single", "output")
    # One way with and without split sizes: ranks may differ in whether they pass them.
    to = _splits(g, "input", input, input_split_sizes)
    of = _splits(g, "output", output, output_split_sizes)
    if output_split_sizes is None and input_split_sizes is None and output.numel() != input.numel():
        given = f"{output.numel()} (shape {tuple(output.shape)})"
        expected = f"{input.numel()} elements for input of {input.numel()}"
        raise ArgumentError("all_to_all_single", "output", expected, given)
    names = {
        "x": "input", "out": "output", "sendcounts": "input_split_sizes", "recvcounts": "output_split_sizes"
    }  # fmt: skip
    plan = g.plan(
        "all_to_all_single", names, "alltoallv", input, output, sendcounts=to, recvcounts=of, algorithm=algorithm
    )

    def run(_keep: Any = (input, output)) -> None:
        g.agreement.meet("all_to_all_single", "output_split_sizes", to, of)
        g.comm.carry_out(plan, "all_to_all_single")

    return g.do("all_to_all_single", run, [output], async_op)


def _splits(g: ProcessGroup, argument: str, x: torch.Tensor, sizes: Any) -> Sequence[int]:
    """The rows of each block: ``sizes``, or equal ones where that is None or empty."""
    operation, name = "all_to_all_single", f"{argument}_split_sizes"
    rows = x.shape[0] if x.dim() else 0
    if sizes is None or len(sizes) == 0:
        if x.dim() == 0 or rows % g.size():
            expected = f"a multiple of {g.size()} rows, or {name}"
            raise ArgumentError(operation, argument, expected, f"shape {tuple(x.shape)}")
        return [rows // g.size()] * g.size()
    counts = checked_counts(sizes, g.size(), operation, name)
    if sum(counts) != rows:
        raise ArgumentError(operation, name, f"sizes that add up to the {rows} rows of {argument}", f"{list(counts)}")
    return counts


def _no_list(g: ProcessGroup, operation: str, argument: str, given: Any, who: str, root: int) -> None:
    if given:
        expected = f"None on rank {g.global_rank(g.rank())}: only the {who}, rank {g.global_rank(root)}, passes a list"
        raise ArgumentError(operation, argument, expected, f"a list of {len(given)}")


def _together(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([x.detach() for x in tensors])


def _hand_out(blocks: Any, tensors: Sequence[torch.Tensor]) -> None:
    for block, tensor in zip(blocks, tensors, strict=True):
        tensor.detach().copy_(block.view(tensor.shape))
    if tensors and tensors[0].is_cuda:  # the caller may wait on another stream than this thread's
        torch.cuda.current_stream(tensors[0].device).synchronize()
