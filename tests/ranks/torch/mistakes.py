"""Wrong arguments of every function, and what the exception for each says: its type, argument, expected and given.

Most follow from the names of a function's parameters: a tensor, a list of tensors, a rank, an operation, a group. The
rest is listed. Braces are filled in with size and rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed

import mpicoll.torch as dist
from mpicoll.errors import ArgumentError, DeviceError, DtypeError, StateError
from tests.ranks.torch.cases import premul

FILL = 5.0


@lru_cache(maxsize=1)
def _groups(world: object) -> tuple[Any, Any]:
    """A group of this rank alone, and a destroyed group. All ranks make them, once for each default group."""
    destroyed = dist.new_group(list(range(dist.get_world_size())))
    dist.destroy_process_group(destroyed)
    return dist.new_group([dist.get_rank()]), destroyed


class Scene:
    """What a call may use: tensors of FILL, which no wrong call may change, and groups."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.alone, self.destroyed = _groups(dist.group.WORLD)
        self.made: list[torch.Tensor] = []

    def t(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        self.made.append(torch.full(shape, FILL, dtype=dtype))
        return self.made[-1]

    def ts(self, *shape: int) -> list[torch.Tensor]:
        return [self.t(*shape) for _ in range(self.size)]

    def unchanged(self) -> bool:
        return all(torch.equal(x, torch.full(x.shape, FILL, dtype=x.dtype)) for x in self.made)


Arguments = dict[str, Any]
RIGHT: dict[str, Callable[[Scene], Arguments]] = {
    "all_reduce": lambda s: {"tensor": s.t(4)},
    "broadcast": lambda s: {"tensor": s.t(4), "src": 0},
    "reduce": lambda s: {"tensor": s.t(4), "dst": 0},
    "all_gather": lambda s: {"tensor_list": s.ts(4), "tensor": s.t(4)},
    "all_gather_into_tensor": lambda s: {"output_tensor": s.t(4 * s.size), "input_tensor": s.t(4)},
    # The lists that only one rank passes: each rank is the one, in a group of its own.
    "gather": lambda s: {"tensor": s.t(4), "gather_list": [s.t(4)], "group": s.alone, "group_dst": 0},
    "scatter": lambda s: {"tensor": s.t(4), "scatter_list": [s.t(4)], "group": s.alone, "group_src": 0},
    "reduce_scatter": lambda s: {"output": s.t(4), "input_list": s.ts(4)},
    "reduce_scatter_tensor": lambda s: {"output": s.t(4), "input": s.t(4 * s.size)},
    "all_to_all": lambda s: {"output_tensor_list": s.ts(4), "input_tensor_list": s.ts(4)},
    "all_to_all_single": lambda s: {"output": s.t(4 * s.size), "input": s.t(4 * s.size)},
    "barrier": lambda s: {},
    "monitored_barrier": lambda s: {},
    "send": lambda s: {"tensor": s.t(4), "dst": (s.rank + 1) % s.size},
    "isend": lambda s: {"tensor": s.t(4), "dst": 0},
    "recv": lambda s: {"tensor": s.t(4)},
    "irecv": lambda s: {"tensor": s.t(4)},
    "P2POp": lambda s: {"op": dist.isend, "tensor": s.t(4), "peer": 0},
    "batch_isend_irecv": lambda s: {"p2p_op_list": [dist.P2POp(dist.isend, s.t(4), 0)]},
    "all_gather_object": lambda s: {"object_list": [0] * s.size, "obj": 1},
    "gather_object": lambda s: {"obj": 1, "object_gather_list": [None], "group": s.alone, "group_dst": 0},
    "broadcast_object_list": lambda s: {"object_list": [1]},
    "scatter_object_list": lambda s: {
        "scatter_object_output_list": [0], "scatter_object_input_list": [1], "group": s.alone, "group_src": 0,
    },
    "send_object_list": lambda s: {"object_list": [1], "dst": 0},
    "recv_object_list": lambda s: {"object_list": [1]},
    "get_rank": lambda s: {},
    "get_world_size": lambda s: {},
    "get_backend": lambda s: {},
    "get_process_group_ranks": lambda s: {},
    "get_group_rank": lambda s: {"group": dist.group.WORLD, "global_rank": 0},
    "get_global_rank": lambda s: {"group": dist.group.WORLD, "group_rank": 0},
    "new_group": lambda s: {"ranks": [s.rank]},
    "destroy_process_group": lambda s: {},
}  # fmt: skip
"""Right arguments of each function."""

LEFT_OUT = object()
"""In the place of an argument that is not given."""


class Mistake(NamedTuple):
    """What is wrong about the right arguments, and the error. ``argument`` is None where the error is of the group."""

    name: str
    changes: Callable[[Scene], Arguments]
    error: type[Exception]
    argument: str | None
    expected: str
    given: str


TENSORS = ("tensor", "input", "input_tensor", "output", "output_tensor")
WRITTEN = {
    "output", "output_tensor", "tensor_list", "gather_list", "output_tensor_list",
    *[(f, "tensor") for f in ("all_reduce", "scatter", "recv", "irecv")],
}  # fmt: skip
"""Arguments that every rank writes, whatever its rank."""
LISTS = ("tensor_list", "gather_list", "scatter_list", "input_list", "output_tensor_list", "input_tensor_list")
ROOTS = ("src", "dst", "peer")
NEED_ROOT = ("broadcast", "reduce", "send", "isend", "P2POp", "send_object_list")
WRONG_RANKS: dict[str, Any] = {
    "-1": -1, "99": 99, "'0'": "0", "True": True, "array": np.zeros(2, int), "tensor": torch.zeros(2),
}  # fmt: skip


def mistakes_of(function: str) -> Iterator[Mistake]:
    """The mistakes that can be made with this function."""
    names = inspect.signature(getattr(dist, function)).parameters
    for name in names:
        if name in TENSORS:
            yield from _of_tensor(function, name, name in WRITTEN or (function, name) in WRITTEN)
        elif name in LISTS:
            yield from _of_list(name, ("all_to_all", "reduce_scatter").count(function) == 0)
        elif name in ROOTS and function != "scatter_object_list":
            yield from _of_root(name, function in NEED_ROOT)
        elif name == "op" and function != "P2POp":
            yield from _of_op(function)
        elif name == "weights_only":
            yield Mistake("weights only", lambda s: {"weights_only": True}, ArgumentError, name, "False", "True")
        elif name == "group" and not function.startswith(("P2P", "get_group_", "get_global_")):
            yield from _of_group()
    yield from OTHERS.get(function, [])


def _of_tensor(function: str, name: str, written: bool) -> Iterator[Mistake]:
    yield Mistake("array", lambda s: {name: np.ones(4)}, ArgumentError, name, "torch.Tensor", "ndarray")
    yield Mistake("list", lambda s: {name: [s.t(4)]}, ArgumentError, name, "torch.Tensor", "list")
    yield Mistake("None", lambda s: {name: None}, ArgumentError, name, "torch.Tensor", "NoneType")
    if function == "P2POp":  # the rest is looked at when the batch starts
        return
    yield Mistake("sparse", lambda s: {name: torch.ones(4).to_sparse()}, ArgumentError, name, "dense", "sparse")
    yield Mistake("meta", lambda s: {name: _meta(4)}, DeviceError, name, "CPU or a CUDA GPU", "meta")
    if written:

        def shared(s: Scene) -> Arguments:
            return {name: _shared(s, RIGHT[function](s)[name].numel())}

        yield Mistake("shared memory", shared, ArgumentError, name, "can be written to", "share memory")


def _of_list(name: str, one_shape: bool) -> Iterator[Mistake]:
    first = f"{name}[0]"

    def filled(make: Callable[[Scene], Any]) -> Callable[[Scene], Arguments]:
        """As many as there are ranks, where each rank passes a list."""
        alone = name in ("gather_list", "scatter_list")
        return lambda s: {name: [make(s) for _ in range(1 if alone else s.size)]}

    yield Mistake("list missing", lambda s: {name: None}, ArgumentError, name, "a list of", "None")
    yield Mistake("list is a tensor", lambda s: {name: s.t(4)}, ArgumentError, name, "a list of", "tensor")
    yield Mistake("list too long", lambda s: {name: [s.t(4)] * 9}, ArgumentError, name, "one for each rank", "9")
    yield Mistake("list empty", lambda s: {name: []}, ArgumentError, name, "one for each rank", "0")
    yield Mistake("no tensor in list", filled(lambda s: 1.0), ArgumentError, first, "torch.Tensor", "float")
    if one_shape:
        yield Mistake("shape in list", filled(lambda s: s.t(5)), ArgumentError, first, "(4,)", "(5,)")
    if name != "output_tensor_list":  # its first tensor says what the others are
        of_ints = filled(lambda s: s.t(4, dtype=torch.int32))
        yield Mistake("dtype in list", of_ints, DtypeError, first, "float32", "int32")
        yield Mistake("device in list", filled(lambda s: _meta(4)), DeviceError, first, "cpu", "meta")
    if name in WRITTEN:
        of_shared = filled(lambda s: _shared(s, 4))
        yield Mistake("shared memory", of_shared, ArgumentError, first, "can be written to", "share memory")


def _of_root(name: str, needed: bool) -> Iterator[Mistake]:
    """Of ``src``, ``dst`` or ``peer`` and its form within a group."""
    in_group = f"group_{name}"
    neither = {name: LEFT_OUT, in_group: LEFT_OUT, "group": LEFT_OUT}
    for which, expected in ((name, "ranks"), (in_group, "rank")):
        for said, wrong in WRONG_RANKS.items():
            changes = {**neither, which: wrong}
            yield Mistake(f"{which}={said}", lambda s, c=changes: c, ArgumentError, which, expected, said)  # type: ignore[misc]
    one = f"{name} or {in_group}"
    yield Mistake("both", lambda s: {name: 0, in_group: 0}, ArgumentError, name, f"{one}, not both", "=0")
    if needed:
        yield Mistake("neither", lambda s: neither, ArgumentError, name, one, "neither")


def _of_op(function: str) -> Iterator[Mistake]:
    ops: Any = dist.ReduceOp
    for wrong in ("sum", None, max, 0):
        yield Mistake(f"op={wrong!r}", lambda s, w=wrong: {"op": w}, ArgumentError, "op", "ReduceOp", repr(wrong))  # type: ignore[misc]
    bare = ops.RedOpType.PREMUL_SUM
    yield Mistake("op without factor", lambda s: {"op": bare}, ArgumentError, "op", "factor", "PREMUL")
    for name, op, dtype in (
        ("avg", ops.AVG, torch.bool),
        ("band", ops.BAND, torch.float32),
        ("bor", ops.BOR, torch.float64),
        ("bxor", ops.BXOR, torch.bfloat16),
        ("min", ops.MIN, torch.complex64),
        ("max", ops.MAX, torch.complex128),
        ("premul_sum", premul(0.5), torch.int64),
        ("sum", ops.SUM, torch.float8_e4m3fn),
    ):

        def changes(s: Scene, op: Any = op, dtype: torch.dtype = dtype) -> Arguments:
            right = RIGHT[function](s)
            cast = {k: [x.to(dtype) for x in v] if isinstance(v, list) else v.to(dtype)
                    for k, v in right.items() if k in (*TENSORS, *LISTS)}  # fmt: skip
            return {**cast, "op": op}

        yield Mistake(f"{name} of {dtype}", changes, DtypeError, "op", name, str(dtype).removeprefix("torch."))


def _of_group() -> Iterator[Mistake]:
    yield Mistake("destroyed group", lambda s: {"group": s.destroyed}, StateError, None, "it was destroyed", "group")
    yield Mistake("no group", lambda s: {"group": "world"}, ArgumentError, "group", "a group", "'world'")
    torchs = torch.distributed.ProcessGroup
    yield Mistake("torch's group", lambda s: {"group": torchs}, ArgumentError, "group", "a group", "ProcessGroup")


def _meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def _shared(s: Scene, n: int) -> torch.Tensor:
    """A tensor of n elements that lie in one place."""
    return s.t(1).expand(n)


def _overlapping(small: str, large: str, whole_too: bool = False) -> Callable[[Scene], Arguments]:
    def changes(s: Scene) -> Arguments:
        whole = s.t(4 * s.size + 1)
        return {large: whole[:-1], small: whole[1:] if whole_too else whole[1:5]}

    return changes


def _splits(to: Callable[[int], Any], of: Callable[[int], Any]) -> Callable[[Scene], Arguments]:
    return lambda s: {
        "output": s.t(2 * s.size),
        "input": s.t(2 * s.size),
        "output_split_sizes": of(s.size),
        "input_split_sizes": to(s.size),
    }


def _twos(n: int) -> list[int]:
    return [2] * n


def _row(
    name: str, argument: str, wrong: Any, expected: str, given: str, error: type[Exception] = ArgumentError
) -> Mistake:
    """A wrong value of one argument. If it is a function, it makes the value of a Scene."""
    made = wrong if getattr(wrong, "__name__", "") == "<lambda>" else lambda s: wrong
    return Mistake(name, lambda s: {argument: made(s)}, error, argument, expected, given)


_IN, _OUT, _OBJECTS = "input_split_sizes", "output_split_sizes", "object_list"
OTHERS: dict[str, list[Mistake]] = {
    "all_gather_into_tensor": [
        _row("size", "output_tensor", lambda s: s.t(4 * s.size + 1), "elements for input_tensor of 4", "{4*size+1} ("),
        _row("dtype", "output_tensor", lambda s: s.t(4 * s.size, dtype=torch.int32), "float32, as input_tensor has",
             "int32", DtypeError),
        Mistake("overlap", _overlapping("input_tensor", "output_tensor"), ArgumentError, "output_tensor",
                "not overlap input_tensor's", "overlaps"),
    ],
    "reduce_scatter_tensor": [
        _row("size", "output", lambda s: s.t(3), "4 elements for input of {4*size}", "3 (shape"),
        _row("dtype", "output", lambda s: s.t(4, dtype=torch.float64), "float32, as input has", "float64", DtypeError),
        Mistake("overlap", _overlapping("output", "input"), ArgumentError, "output", "not overlap input's", "overlaps"),
    ],
    "all_to_all_single": [
        _row("size", "output", lambda s: s.t(5 * s.size), "{4*size} elements for input of {4*size}", "{5*size} (shape"),
        Mistake("overlap", _overlapping("input", "output", True), ArgumentError, "output", "not overlap", "overlaps"),
        Mistake("too many splits", _splits(lambda n: [1] * (n + 1), _twos), ArgumentError, _IN,
                "{size} counts of rows, one for each rank", "[1,"),
        Mistake("one split", _splits(lambda n: 2, _twos), ArgumentError, _IN, "a sequence of ints", "2"),
        Mistake("negative split", _splits(_twos, lambda n: [-2] * n), ArgumentError, _OUT, "none negative", "[-2"),
        Mistake("no number", _splits(lambda n: ["2"] * n, _twos), ArgumentError, _IN, "counts", "['2'"),
        Mistake("sum of splits", _splits(lambda n: [1] * n, _twos), ArgumentError, _IN,
                "add up to the {2*size} rows of input", "[1"),
    ],
    "send": [
        _row("oneself", "dst", lambda s: s.rank, "another rank", "{rank}"), _row("tag", "tag", -1, "from 0", "-1"),
    ],
    "isend": [_row("tag", "tag", 2**40, "from 0", str(2**40))],
    "recv": [
        _row("oneself", "src", lambda s: s.rank, "another rank", "{rank}"),
        _row("tag", "tag", "a", "from 0", "'a'"), _row("any tag", "tag", -1, "from 0", "-1"),
    ],
    "P2POp": [
        _row("op", "op", dist.send, "isend or", "send"), _row("array", "op", np.zeros(2), "isend or", "array"),
        _row("torch's op", "op", torch.distributed.isend, "mpicoll.torch.isend", "isend"),
    ],
    "batch_isend_irecv": [
        _row("empty", "p2p_op_list", [], "at least one", "[]"),
        _row("no list", "p2p_op_list", lambda s: dist.P2POp(dist.isend, s.t(4), 0), "list", "P2POp"),
        _row("no op", "p2p_op_list", lambda s: [s.t(4)], "P2POp", "tensor"),
    ],
    "all_gather_object": [
        _row("length", _OBJECTS, lambda s: [None] * (s.size + 1), "a list of {size}", "{size+1}"),
        _row("no list", _OBJECTS, (), "a list", "()"),
    ],
    "gather_object": [_row("missing", "object_gather_list", None, "a list of 1", "None")],
    "broadcast_object_list": [_row("no list", _OBJECTS, "ab", "a list", "'ab'")],
    "scatter_object_list": [
        _row("output", "scatter_object_output_list", [], "at least one", "[]"),
        _row("missing", "scatter_object_input_list", None, "a list of 1", "None"),
        _row("length", "scatter_object_input_list", [1, 2], "a list of 1", "2"),
    ],
    "send_object_list": [_row("no list", _OBJECTS, "a", "a list", "'a'")],
    "recv_object_list": [_row("no list", _OBJECTS, "a", "a list", "'a'")],
    "monitored_barrier": [_row("seconds", "timeout", 5, "timedelta", "5")],
    "new_group": [
        _row("twice", "ranks", [0, 0], "different ranks", "[0, 0]"), _row("empty", "ranks", [], "at least one", "[]"),
        _row("outside", "ranks", [0, 99], "0 to {size-1}", "99"),
        _row("no number", "ranks", ["0"], "different ranks", "'0'"),
        _row("timeout", "timeout", timedelta(0), "positive", "timedelta(0)"),
        _row("backend", "backend", "tcp", "gloo", "'tcp'"),
    ],
    "get_group_rank": [
        _row("rank", "global_rank", 99, "group's ranks, [0", "99"),
        _row("not a member", "group", dist.GroupMember.NON_GROUP_MEMBER, "this rank is in", "-100"),
        _row("array", "global_rank", np.zeros(2, int), "group's ranks, [0", "array"),
        _row("group array", "group", np.zeros(2), "a group of", "array"),
    ],
    "get_global_rank": [
        _row("rank", "group_rank", 99, "0 to {size-1}", "99"),
        _row("array", "group_rank", np.zeros(2, int), "0 to {size-1}", "array"),
    ],
}  # fmt: skip
"""What does not follow from the names of parameters."""
