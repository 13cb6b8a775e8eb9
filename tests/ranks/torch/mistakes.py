"""Wrong arguments of every function, and what the exception for each says: its type, argument, expected and given.

A row makes its call from a Scene, whose tensors no wrong call may change. Braces are filled in with size and rank.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed

from mpicoll.errors import ArgumentError, DeviceError, DtypeError, StateError
from tests.ranks.torch.api import dist
from tests.ranks.torch.mistake_rows import (
    Call,
    Scene,
    of_lists,
    of_ops,
    of_output_lists,
    of_outputs,
    of_roots,
    of_tensors,
)


def _overlapping(s: Scene, function: str) -> Call:
    whole = s.t(4 * s.size + 1)
    blocks, shifted = whole[:-1], whole[1:5]
    if function == "all_gather_into_tensor":
        return lambda: dist.all_gather_into_tensor(blocks, shifted)
    if function == "reduce_scatter_tensor":
        return lambda: dist.reduce_scatter_tensor(shifted, blocks)
    return lambda: dist.all_to_all_single(blocks, whole[1:])


def _splits(s: Scene, to: Any, of: Any) -> Call:
    return lambda: dist.all_to_all_single(s.t(2 * s.size), s.t(2 * s.size), of, to)


def _one_of(xs: Any) -> Any:
    """The first element of a list for all ranks, as a list for one rank."""
    return xs[:1] if isinstance(xs, list) else xs


def _gather_alone(s: Scene, xs: Any) -> Call:
    return lambda: dist.gather(s.t(4), _one_of(xs), group=s.alone, group_dst=0)


def _scatter_alone(s: Scene, xs: Any) -> Call:
    return lambda: dist.scatter(s.t(4), _one_of(xs), group=s.alone, group_src=0)


D = dist
TABLE: dict[str, dict[str, Any]] = {
    "all_reduce": {
        **of_outputs(lambda s, x: lambda: D.all_reduce(x), "tensor"),
        **of_ops(lambda s, op, dtype: lambda: D.all_reduce(s.t(4, dtype=dtype), op)),
    },
    "broadcast": {
        **of_tensors(lambda s, x: lambda: D.broadcast(x, 0), "tensor"),
        **of_roots(lambda s, **root: lambda: D.broadcast(s.t(4), **root), "src"),
    },
    "reduce": {
        **of_tensors(lambda s, x: lambda: D.reduce(x, 0), "tensor"),
        **of_roots(lambda s, **root: lambda: D.reduce(s.t(4), **root), "dst"),
        **of_ops(lambda s, op, dtype: lambda: D.reduce(s.t(4, dtype=dtype), 0, op)),
    },
    "all_gather": {
        **of_tensors(lambda s, x: lambda: D.all_gather(s.ts(4), x), "tensor"),
        **of_output_lists(lambda s, xs: lambda: D.all_gather(xs, s.t(4)), "tensor_list"),
    },
    "all_gather_into_tensor": {
        **of_tensors(lambda s, x: lambda: D.all_gather_into_tensor(s.t(4 * s.size), x), "input_tensor"),
        "output": (
            lambda s: lambda: D.all_gather_into_tensor(None, s.t(4)), ArgumentError, "output_tensor", "Tensor", "None",
        ),
        "size": (
            lambda s: lambda: D.all_gather_into_tensor(s.t(4 * s.size + 1), s.t(4)),
            ArgumentError, "output_tensor", "elements for input_tensor of 4", "{4*size+1} (shape",
        ),
        "dtype": (
            lambda s: lambda: D.all_gather_into_tensor(s.t(4 * s.size, dtype=torch.int32), s.t(4)),
            DtypeError, "output_tensor", "float32, as input_tensor has", "int32",
        ),
        "device": (
            lambda s: lambda: D.all_gather_into_tensor(s.meta(4 * s.size), s.t(4)),
            DeviceError, "output_tensor", "CPU or a CUDA", "meta",
        ),
        "shared memory": (
            lambda s: lambda: D.all_gather_into_tensor(s.shared(4 * s.size), s.t(4)),
            ArgumentError, "output_tensor", "can be written to", "share memory",
        ),
        "overlap": (
            lambda s: _overlapping(s, "all_gather_into_tensor"),
            ArgumentError, "output_tensor", "not overlap input_tensor's", "overlaps",
        ),
    },
    # The lists that only one rank passes: each rank is the one, in a group of its own.
    "gather": {
        **of_tensors(lambda s, x: lambda: D.gather(x, [s.t(4)], group=s.alone, group_dst=0), "tensor"),
        **of_roots(lambda s, **root: lambda: D.gather(s.t(4), s.ts(4), **root), "dst", optional=True),
        **of_output_lists(_gather_alone, "gather_list", "list too long"),
        "list too long": (
            lambda s: lambda: D.gather(s.t(4), [s.t(4), s.t(4)], group=s.alone, group_dst=0),
            ArgumentError, "gather_list", "a list of 1", "2",
        ),
    },
    "scatter": {
        **of_outputs(lambda s, x: lambda: D.scatter(x, [s.t(4)], group=s.alone, group_src=0), "tensor"),
        **of_roots(lambda s, **root: lambda: D.scatter(s.t(4), s.ts(4), **root), "src", optional=True),
        **of_lists(_scatter_alone, "scatter_list", "list too long"),
        "list too long": (
            lambda s: lambda: D.scatter(s.t(4), [s.t(4), s.t(4)], group=s.alone, group_src=0),
            ArgumentError, "scatter_list", "a list of 1", "2",
        ),
    },
    "reduce_scatter": {
        **of_outputs(lambda s, x: lambda: D.reduce_scatter(x, s.ts(4)), "output"),
        **of_lists(lambda s, xs: lambda: D.reduce_scatter(s.t(4), xs), "input_list", "shape in list"),
        **of_ops(
            lambda s, op, dtype: lambda: D.reduce_scatter(
                s.t(4, dtype=dtype), [s.t(4, dtype=dtype) for _ in range(s.size)], op)
        ),
    },
    "reduce_scatter_tensor": {
        **of_tensors(lambda s, x: lambda: D.reduce_scatter_tensor(s.t(4), x), "input"),
        **of_ops(
            lambda s, op, dtype: lambda: D.reduce_scatter_tensor(
                s.t(4, dtype=dtype), s.t(4 * s.size, dtype=dtype), op)
        ),
        "output": (lambda s: lambda: D.reduce_scatter_tensor([], s.t(4)), ArgumentError, "output", "Tensor", "list"),
        "size": (
            lambda s: lambda: D.reduce_scatter_tensor(s.t(3), s.t(4 * s.size)),
            ArgumentError, "output", "4 elements for input of {4*size}", "3 (shape",
        ),
        "dtype": (
            lambda s: lambda: D.reduce_scatter_tensor(s.t(4, dtype=torch.float64), s.t(4 * s.size)),
            DtypeError, "output", "float32, as input has", "float64",
        ),
        "shared memory": (
            lambda s: lambda: D.reduce_scatter_tensor(s.shared(), s.t(4 * s.size)),
            ArgumentError, "output", "can be written to", "share memory",
        ),
        "overlap": (
            lambda s: _overlapping(s, "reduce_scatter_tensor"),
            ArgumentError, "output", "not overlap input's", "overlaps",
        ),
    },
    "all_to_all": {
        **of_output_lists(lambda s, xs: lambda: D.all_to_all(xs, s.ts(4)), "output_tensor_list", "shape in list"),
        **of_lists(lambda s, xs: lambda: D.all_to_all(s.ts(4), xs), "input_tensor_list", "shape in list"),
    },
    "all_to_all_single": {
        **of_tensors(lambda s, x: lambda: D.all_to_all_single(s.t(4 * s.size), x), "input"),
        "output": (lambda s: lambda: D.all_to_all_single([], s.t(4)), ArgumentError, "output", "Tensor", "list"),
        "size": (
            lambda s: lambda: D.all_to_all_single(s.t(5 * s.size), s.t(4 * s.size)),
            ArgumentError, "output", "{4*size} elements for input of {4*size}", "{5*size} (shape",
        ),
        "overlap": (lambda s: _overlapping(s, "all_to_all_single"), ArgumentError, "output", "not overlap", "overlaps"),
        "too many splits": (
            lambda s: _splits(s, [1] * (s.size + 1), [2] * s.size),
            ArgumentError, "input_split_sizes", "{size} counts of rows, one for each rank", "[1,",
        ),
        "one split": (
            lambda s: _splits(s, 2, [2] * s.size), ArgumentError, "input_split_sizes", "a sequence of ints", "2",
        ),
        "negative split": (
            lambda s: _splits(s, [2] * s.size, [-2] * s.size),
            ArgumentError, "output_split_sizes", "none negative", "[-2",
        ),
        "split is no number": (
            lambda s: _splits(s, ["2"] * s.size, [2] * s.size), ArgumentError, "input_split_sizes", "counts", "['2'",
        ),
        "sum of splits": (
            lambda s: _splits(s, [1] * s.size, [2] * s.size),
            ArgumentError, "input_split_sizes", "add up to the {2*size} rows of input", "[1",
        ),
    },
    "send": {
        **of_tensors(lambda s, x: lambda: D.send(x, (s.rank + 1) % s.size), "tensor"),
        **of_roots(lambda s, **root: lambda: D.send(s.t(4), **root), "dst"),
        "oneself": (lambda s: lambda: D.send(s.t(4), s.rank), ArgumentError, "dst", "another rank", "{rank}"),
        "tag": (lambda s: lambda: D.send(s.t(4), (s.rank + 1) % s.size, tag=-1), ArgumentError, "tag", "from 0", "-1"),
    },
    "isend": {
        **of_tensors(lambda s, x: lambda: D.isend(x, 0), "tensor"),
        **of_roots(lambda s, **root: lambda: D.isend(s.t(4), **root), "dst"),
        "tag": (lambda s: lambda: D.isend(s.t(4), 0, tag=2**40), ArgumentError, "tag", "from 0", str(2**40)),
    },
    "recv": {
        **of_outputs(lambda s, x: lambda: D.recv(x), "tensor"),
        **of_roots(lambda s, **root: lambda: D.recv(s.t(4), **root), "src", optional=True),
        "oneself": (lambda s: lambda: D.recv(s.t(4), s.rank), ArgumentError, "src", "another rank", "{rank}"),
        "tag": (lambda s: lambda: D.recv(s.t(4), tag="a"), ArgumentError, "tag", "from 0", "'a'"),
        "any tag": (lambda s: lambda: D.recv(s.t(4), tag=-1), ArgumentError, "tag", "from 0", "-1"),
    },
    "irecv": {
        **of_outputs(lambda s, x: lambda: D.irecv(x), "tensor"),
        **of_roots(lambda s, **root: lambda: D.irecv(s.t(4), **root), "src", optional=True),
    },
    "P2POp": {
        "op": (lambda s: lambda: D.P2POp(D.send, s.t(4), 0), ArgumentError, "op", "isend or", "send"),
        "array": (
            lambda s: lambda: D.P2POp(np.zeros(2), s.t(4), 0), ArgumentError, "op", "isend or", "array",
        ),
        "torch's op": (
            lambda s: lambda: D.P2POp(torch.distributed.isend, s.t(4), 0),
            ArgumentError, "op", "mpicoll.torch.isend", "isend",
        ),
        "tensor": (lambda s: lambda: D.P2POp(D.isend, [1], 0), ArgumentError, "tensor", "torch.Tensor", "list"),
        **of_roots(
            lambda s, **peer: lambda: D.P2POp(D.isend, s.t(4), **peer), "peer",
        ),
    },
    "batch_isend_irecv": {
        "empty": (lambda s: lambda: D.batch_isend_irecv([]), ArgumentError, "p2p_op_list", "at least one", "[]"),
        "no list": (
            lambda s: lambda: D.batch_isend_irecv(D.P2POp(D.isend, s.t(4), 0)),
            ArgumentError, "p2p_op_list", "list", "P2POp",
        ),
        "no op": (lambda s: lambda: D.batch_isend_irecv([s.t(4)]), ArgumentError, "p2p_op_list", "P2POp", "tensor"),
    },
    "all_gather_object": {
        "length": (
            lambda s: lambda: D.all_gather_object([None] * (s.size + 1), 1),
            ArgumentError, "object_list", "a list of {size}", "{size+1}",
        ),
        "no list": (lambda s: lambda: D.all_gather_object((), 1), ArgumentError, "object_list", "a list", "()"),
    },
    "gather_object": {
        "missing": (
            lambda s: lambda: D.gather_object(1, None, group=s.alone, group_dst=0),
            ArgumentError, "object_gather_list", "a list of 1", "None",
        ),
        **of_roots(lambda s, **root: lambda: D.gather_object(1, [None] * s.size, **root), "dst", optional=True),
    },
    "broadcast_object_list": {
        "no list": (lambda s: lambda: D.broadcast_object_list("ab"), ArgumentError, "object_list", "a list", "'ab'"),
        **of_roots(lambda s, **root: lambda: D.broadcast_object_list([1], **root), "src", optional=True),
    },
    "scatter_object_list": {
        "output": (
            lambda s: lambda: D.scatter_object_list([], [1] * s.size),
            ArgumentError, "scatter_object_output_list", "at least one", "[]",
        ),
        "missing": (
            lambda s: lambda: D.scatter_object_list([None], None, group=s.alone, group_src=0),
            ArgumentError, "scatter_object_input_list", "a list of 1", "None",
        ),
        "length": (
            lambda s: lambda: D.scatter_object_list([None], [1, 2], group=s.alone, group_src=0),
            ArgumentError, "scatter_object_input_list", "a list of 1", "2",
        ),
    },
    "send_object_list": {
        "no list": (lambda s: lambda: D.send_object_list("a", 0), ArgumentError, "object_list", "a list", "'a'"),
        **of_roots(lambda s, **root: lambda: D.send_object_list([1], **root), "dst"),
    },
    "recv_object_list": {
        "no list": (lambda s: lambda: D.recv_object_list("a", 0), ArgumentError, "object_list", "a list", "'a'"),
        **of_roots(lambda s, **root: lambda: D.recv_object_list([1], **root), "src", optional=True),
    },
    "monitored_barrier": {
        "seconds": (lambda s: lambda: D.monitored_barrier(timeout=5), ArgumentError, "timeout", "timedelta", "5"),
    },
    "new_group": {
        "twice": (lambda s: lambda: D.new_group([0, 0]), ArgumentError, "ranks", "different ranks", "[0, 0]"),
        "empty": (lambda s: lambda: D.new_group([]), ArgumentError, "ranks", "at least one", "[]"),
        "outside": (lambda s: lambda: D.new_group([0, 99]), ArgumentError, "ranks", "0 to {size-1}", "99"),
        "no number": (lambda s: lambda: D.new_group(["0"]), ArgumentError, "ranks", "different ranks", "'0'"),
        "timeout": (
            lambda s: lambda: D.new_group([0], timeout=timedelta(0)),
            ArgumentError, "timeout", "positive", "timedelta(0)",
        ),
        "backend": (lambda s: lambda: D.new_group([s.rank], backend="tcp"), ArgumentError, "backend", "gloo", "'tcp'"),
    },
    "get_group_rank": {
        "rank": (
            lambda s: lambda: D.get_group_rank(D.group.WORLD, 99),
            ArgumentError, "global_rank", "group's ranks, [0", "99",
        ),
        "not a member": (
            lambda s: lambda: D.get_group_rank(D.GroupMember.NON_GROUP_MEMBER, 0),
            ArgumentError, "group", "this rank is in", "-100",
        ),
        "array": (
            lambda s: lambda: D.get_group_rank(D.group.WORLD, np.zeros(2, int)),
            ArgumentError, "global_rank", "group's ranks", "array",
        ),
        "group array": (
            lambda s: lambda: D.get_group_rank(np.zeros(2), 0), ArgumentError, "group", "a group of", "array",
        ),
    },
    "get_global_rank": {
        "rank": (
            lambda s: lambda: D.get_global_rank(D.group.WORLD, 99), ArgumentError, "group_rank", "0 to {size-1}", "99",
        ),
        "array": (
            lambda s: lambda: D.get_global_rank(D.group.WORLD, np.zeros(2, int)),
            ArgumentError, "group_rank", "0 to {size-1}", "array",
        ),
    },
}  # fmt: skip


# Of every function that takes a group: right arguments, but for the group.
for function, arguments in {
    "all_reduce": lambda s: (s.t(4),),
    "broadcast": lambda s: (s.t(4), 0),
    "reduce": lambda s: (s.t(4), 0),
    "all_gather": lambda s: (s.ts(4), s.t(4)),
    "all_gather_into_tensor": lambda s: (s.t(4 * s.size), s.t(4)),
    "gather": lambda s: (s.t(4),),
    "scatter": lambda s: (s.t(4),),
    "reduce_scatter": lambda s: (s.t(4), s.ts(4)),
    "reduce_scatter_tensor": lambda s: (s.t(4), s.t(4 * s.size)),
    "all_to_all": lambda s: (s.ts(4), s.ts(4)),
    "all_to_all_single": lambda s: (s.t(4 * s.size), s.t(4 * s.size)),
    "barrier": lambda s: (),
    "monitored_barrier": lambda s: (),
    "send": lambda s: (s.t(4), 0),
    "isend": lambda s: (s.t(4), 0),
    "recv": lambda s: (s.t(4), 0),
    "irecv": lambda s: (s.t(4), 0),
    "all_gather_object": lambda s: ([0] * s.size, 1),
    "gather_object": lambda s: (1,),
    "broadcast_object_list": lambda s: ([1],),
    "scatter_object_list": lambda s: ([1],),
    "send_object_list": lambda s: ([1], 0),
    "recv_object_list": lambda s: ([1], 0),
    "get_rank": lambda s: (),
    "get_world_size": lambda s: (),
    "get_backend": lambda s: (),
    "get_process_group_ranks": lambda s: (),
    "destroy_process_group": lambda s: (),
}.items():
    rows = TABLE.setdefault(function, {})

    def on(group: Callable[[Scene], Any], f: str = function, make: Any = arguments) -> Callable[[Scene], Call]:
        return lambda s: partial(getattr(D, f), *make(s), group=group(s))

    rows["destroyed group"] = on(lambda s: s.destroyed), StateError, None, "it was destroyed", "group"
    rows["no group"] = on(lambda s: "world"), ArgumentError, "group", "a group", "'world'"
    rows["torch's group"] = (
        on(lambda s: torch.distributed.ProcessGroup),
        ArgumentError,
        "group",
        "a group",
        "ProcessGroup",
    )
