"""Calls of mpicoll.torch's collectives, described by value: whichever is drawn or listed, one place carries it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from inspect import signature
from typing import Any

import numpy as np
import torch
import torch.distributed

from mpicoll.arrays.dtypes import DTYPES, OPS
from mpicoll.arrays.libraries import owners
from tests import oracle
from tests.devices.tensors import SimulatedGpu
from tests.ranks.torch.api import dist, through_torch

Array = np.ndarray[Any, Any]

FUNCTIONS = {
    "broadcast": "bcast", "all_reduce": "allreduce", "reduce": "reduce", "all_gather": "allgather",
    "all_gather_into_tensor": "allgather", "gather": "gather", "scatter": "scatter",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "alltoall", "all_to_all_single": "alltoall",
}  # fmt: skip
"""mpicoll.torch's collectives, and MPI's names of them."""
REDUCING = [f for f in FUNCTIONS if "reduce" in f]
ROOTED = {"broadcast": "src", "reduce": "dst", "gather": "dst", "scatter": "src"}

MOVED = {"float8_e4m3fn": "uint8", "complex32": "int32"}
"""Dtypes that cannot be reduced, and those whose values stand for their bits."""

OP_OF: dict[str, Any] = {
    op: getattr(dist.ReduceOp, "PRODUCT" if op == "prod" else op.upper())
    for op in ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
}


def legal(op: str, function: str = "") -> list[str]:
    """The dtypes on which ``op`` is defined."""
    kinds = OPS[op][0]
    if through_torch() and (function, op) == ("all_reduce", "prod"):  # torch views complex numbers as real ones
        kinds = kinds.replace("c", "")
    return [d.name for d in DTYPES.values() if d.kind in kinds]


# -- groups -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """A group with the global ranks that it is known to have, in group order; ``rank`` is this process's, or None."""

    name: str
    handle: Any
    ranks: list[int]
    rank: int | None = field(default=None)

    @property
    def size(self) -> int:
        return len(self.ranks)


SORTS_RANKS = "sort_ranks" in signature(dist.new_group).parameters
"""Whether new_group can keep the order of its ranks. torch 2.11 cannot."""


@lru_cache(maxsize=8)
def make_groups(world: object) -> list[Group]:
    """The default group ``world``, all of it by name, some ranks, some of those, and all in reversed order; collective.

    Made once for each default group, of which each rank that is a thread has its own."""
    size, rank = dist.get_world_size(), dist.get_rank()
    everybody = list(range(size))
    some = everybody[1:] or everybody
    nested = some[::2]
    backwards = everybody[::-1] if SORTS_RANKS else everybody
    made = [
        ("world", None, everybody),
        ("everybody", dist.new_group(everybody), everybody),
        ("some", dist.new_group(some), some),
        ("nested", dist.new_group(nested), nested),
        ("backwards", dist.new_group(backwards, **{"sort_ranks": False} if SORTS_RANKS else {}), backwards),
    ]
    return [Group(name, g, ranks, ranks.index(rank) if rank in ranks else None) for name, g, ranks in made]


# -- layouts ----------------------------------------------------------------------------------------------------------


class OwnTensor(torch.Tensor):
    """A tensor of a class of the user's own."""


Laid = tuple[torch.Tensor, torch.Tensor | None]
"""A tensor, and the memory between its elements or around them, which is all ones and must stay so."""


def _strided(x: torch.Tensor) -> Laid:
    whole = x.new_ones((*x.shape[:-1], 2 * x.shape[-1]))
    part = whole[..., ::2]
    part.copy_(x)
    return part, whole[..., 1::2]


def _offset(x: torch.Tensor) -> Laid:
    whole = x.new_ones(x.numel() + 2)
    part = whole[1:-1].view(x.shape)
    part.copy_(x)
    return part, whole[:: x.numel() + 1]


def _non_leaf(x: torch.Tensor) -> Laid:
    return x.requires_grad_() * 1, None


LAYOUTS: dict[str, Callable[[torch.Tensor], Laid]] = {
    "contiguous": lambda x: (x, None),
    "strided": _strided,
    "transposed": lambda x: (x.movedim(0, -1).contiguous().movedim(-1, 0), None),
    "offset": _offset,
    "requires grad": lambda x: (x.requires_grad_(), None),
    "in a graph": _non_leaf,
    "parameter": lambda x: (torch.nn.Parameter(x, requires_grad=x.is_floating_point() or x.is_complex()), None),
    "conjugate view": lambda x: (x.conj().resolve_conj().conj(), None),
    "negative view": lambda x: (torch._neg_view(-x), None),
    "own class": lambda x: (x.as_subclass(OwnTensor), None),
}


def layouts(dtype: str, dims: int) -> list[str]:
    """The layouts that a tensor of this dtype and this many dimensions can have."""
    kind = DTYPES[dtype].kind
    impossible = set()
    if kind not in "fc":
        impossible |= {"requires grad", "in a graph"}
    if kind not in "ifc":
        impossible.add("negative view")
    if kind != "c" or through_torch():  # torch views complex numbers as real ones, and cannot view these
        impossible.add("conjugate view")
    if dims < 1:
        impossible.add("strided")
    if dims < 2:
        impossible.add("transposed")
    return [name for name in LAYOUTS if name not in impossible]


def tensor(x: Array, dtype: str, device: str = "cpu") -> torch.Tensor:
    """The oracle's values as a new contiguous tensor."""
    host = torch.from_numpy(np.array(x, order="C")).to(getattr(torch, MOVED.get(dtype, dtype)))
    host = host.view(getattr(torch, dtype))
    simulated = owners.get(device)
    return simulated.tensor(host) if isinstance(simulated, SimulatedGpu) else host.to(device)


def values_of(x: torch.Tensor) -> Array:
    """A tensor's values as the oracle holds them."""
    bits = MOVED.get(str(x.dtype).removeprefix("torch."))
    x = x.detach() if bits is None else x.detach().view(getattr(torch, bits))
    x = x.resolve_conj().resolve_neg().cpu()
    return np.array((x.float() if x.dtype == torch.bfloat16 else x).numpy())


# -- calls ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One call. All ranks make it alike, apart from ``async_ranks``.

    ``root`` is a rank of the group, and ``shape`` that of one rank's block."""

    function: str
    dtype: str
    op: str = "sum"
    root: int = 0
    shape: tuple[int, ...] = (3,)
    layout: str = "contiguous"
    out_layout: str = "contiguous"
    async_ranks: str = "none"
    root_in_group: bool = False
    seed: int = 0
    device: str = "cpu"


@dataclass
class Started:
    """A call on its way, and what its tensors must hold when ``work`` is complete, or now if it is None."""

    case: Case
    group: Group
    work: dist.Work | None
    results: list[tuple[torch.Tensor, Array]]
    gaps: list[torch.Tensor]

    def check(self) -> None:
        where = f"{self.case} in group {self.group.name!r} of ranks {self.group.ranks}, on its rank {self.group.rank}"
        if self.work is not None:
            assert self.work.wait() is True, where
        for found, expected in self.results:
            np.testing.assert_array_equal(values_of(found), expected, err_msg=where)
        for gap in self.gaps:
            np.testing.assert_array_equal(values_of(gap), np.ones(gap.shape), err_msg=f"written beside: {where}")
        if self.work is not None:
            assert self.work.is_completed(), where
            assert self.work.is_success(), where


class Arguments:
    """The tensors of one call, with what each must hold when the call is complete."""

    def __init__(self, case: Case, g: Group, mine: Array, expected: Array | None) -> None:
        self.case, self.size, self.mine, self.expected = case, g.size, mine, expected
        self.at_root = g.rank == case.root
        self.results: list[tuple[torch.Tensor, Array]] = []
        self.gaps: list[torch.Tensor] = []

    def laid(self, x: Array, layout: str, becomes: Array) -> torch.Tensor:
        found, gap = LAYOUTS[layout](tensor(x, self.case.dtype, self.case.device))
        if gap is not None:
            self.gaps.append(gap)
        self.results.append((found, becomes))
        return found

    def given(self, x: Array) -> torch.Tensor:
        """An input, which must be the same afterwards."""
        return self.laid(x, self.case.layout, x)

    def changed(self) -> torch.Tensor:
        """An input that becomes the result. It stays as it is if this rank has no result."""
        x, becomes = self.mine, self.expected
        return self.laid(x, self.case.layout, x if becomes is None else becomes.reshape(x.shape))

    def taken(self, *shape: int) -> torch.Tensor:
        """An output that becomes the result, in this shape."""
        becomes = self.expected.reshape(shape)
        return self.laid(np.zeros(becomes.shape, becomes.dtype), self.case.out_layout, becomes)

    def all_taken(self) -> list[torch.Tensor]:
        """A list of outputs that becomes the result."""
        blocks = self.expected.reshape(self.size, *self.case.shape)
        return [self.laid(np.zeros(x.shape, x.dtype), self.case.out_layout, x) for x in blocks]

    def whole_shape(self) -> tuple[int, ...]:
        """The shape of all ranks' blocks, one after another."""
        shape = self.case.shape
        return (self.size * shape[0], *shape[1:]) if shape else (self.size,)

    def tensors(self) -> dict[str, Any]:
        """The tensors, by the names of the function's parameters."""
        mine, block, whole = self.mine, self.case.shape, self.whole_shape()
        match self.case.function:
            case "broadcast" | "all_reduce" | "reduce":
                return {"tensor": self.changed()}
            case "all_gather":
                return {"tensor": self.given(mine), "tensor_list": self.all_taken()}
            case "all_gather_into_tensor":
                return {"input_tensor": self.given(mine), "output_tensor": self.taken(*whole)}
            case "gather":
                return {"tensor": self.given(mine), "gather_list": self.all_taken() if self.at_root else None}
            case "scatter":
                blocks = [self.given(x) for x in mine] if self.at_root else None
                return {"tensor": self.taken(*block), "scatter_list": blocks}
            case "reduce_scatter":
                return {"input_list": [self.given(x) for x in mine], "output": self.taken(*block)}
            case "reduce_scatter_tensor":
                return {"input": self.given(mine.reshape(whole)), "output": self.taken(*block)}
            case "all_to_all":
                return {"input_tensor_list": [self.given(x) for x in mine], "output_tensor_list": self.all_taken()}
            case "all_to_all_single":
                return {"input": self.given(mine.reshape(whole)), "output": self.taken(*whole)}
            case _:
                raise AssertionError(self.case.function)


BLOCKS_GIVEN = ("scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single")
"""Functions whose input holds a block for each rank."""


def start(case: Case, g: Group, api: Any = dist) -> Started:
    """Make the call of ``api`` on this rank, a member of the group."""
    rng = np.random.default_rng([case.seed, g.size])
    shape = (g.size, *case.shape) if case.function in BLOCKS_GIVEN else case.shape
    dtype = MOVED.get(case.dtype, case.dtype)
    inputs = [oracle.values(rng, dtype, shape, case.op) for _ in g.ranks]
    factors = [float(f) for f in rng.choice([-1.0, 0.5, 2.0], g.size)]
    expected = oracle.outcome(FUNCTIONS[case.function], inputs, case.op, case.root, dtype, factors)[g.rank]
    made = Arguments(case, g, inputs[g.rank], expected)
    arguments = made.tensors()
    if case.function in REDUCING:
        op = premul(factors[g.rank]) if case.op == "premul_sum" else OP_OF[case.op]
        arguments["op"] = dist.ReduceOp(op) if case.seed % 2 and case.op != "premul_sum" else op
    if case.function in ROOTED:
        end = ROOTED[case.function]
        arguments |= {f"group_{end}": case.root} if case.root_in_group else {end: g.ranks[case.root]}
    async_op = {"none": False, "all": True, "some": g.rank % 2 == case.seed % 2}[case.async_ranks]
    work = getattr(api, case.function)(**arguments, group=g.handle, async_op=async_op)
    assert (work is not None) == async_op
    return Started(case, g, work, made.results, made.gaps)


def run(case: Case, g: Group, api: Any = dist) -> None:
    """Make the call and check it, where this rank is in the group."""
    if g.rank is not None:
        start(case, g, api).check()


def premul(factor: Any) -> Any:
    """torch's reduction that multiplies each rank's input by the factor, and adds up."""
    return torch.distributed._make_nccl_premul_sum(factor)


def roots(function: str, g: Group) -> Iterator[int]:
    yield from range(g.size) if function in ROOTED else [0]


# -- calls that are pending --------------------------------------------------------------------------------------------
# A collective is certainly pending while another rank has not come to it. A test that needs this holds the other ranks
# back until rank 0 has seen what it looks for. Then rank 0 sends them a message.

SHORT = timedelta(milliseconds=20)


def started(work: dist.Work | None) -> dist.Work:
    assert isinstance(work, dist.Work)
    return work


def let_go(rank: int, size: int) -> None:
    """Rank 0 lets the others go on, which wait in ``held``."""
    assert rank == 0
    for r in range(1, size):
        dist.send(torch.ones(1), r, tag=7)


def held(rank: int) -> None:
    """Every rank but rank 0 waits here until rank 0 calls ``let_go``."""
    if rank != 0:
        dist.recv(torch.empty(1), 0, tag=7)
