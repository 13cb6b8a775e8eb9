"""Every collective on every dtype, op, root, group and layout, against one process's results."""

from __future__ import annotations

import os
import weakref
from itertools import product

import numpy as np
import pytest
import torch

from mpicoll.arrays.dtypes import DTYPES
from mpicoll.errors import ArgumentError
from tests.ranks.torch.api import dist
from tests.ranks.torch.cases import (
    FUNCTIONS,
    LAYOUTS,
    MOVED,
    OP_OF,
    REDUCING,
    ROOTED,
    Case,
    Group,
    Started,
    layouts,
    legal,
    premul,
    roots,
    run,
    start,
)

DRAWS = 1000
GROUPS = 5
ASYNC = ("none", "all", "some")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_dtype_and_op(groups: list[Group], function: str) -> None:
    ops = [*OP_OF, "premul_sum"] if function in REDUCING else ["sum"]
    for op in ops:
        dtypes = legal(op, function) if function in REDUCING else [*DTYPES, *MOVED]
        for i, dtype in enumerate(dtypes):
            for root in roots(function, groups[0]):
                run(Case(function, dtype, op, root, root_in_group=bool(i % 2), seed=i), groups[0])


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("which", range(1, GROUPS))
def test_every_group_and_root(groups: list[Group], function: str, which: int) -> None:
    g = groups[which]
    cases = [(dtype, op) for op in [*OP_OF, "premul_sum"] for dtype in ("bfloat16", "int32", "float32", "bool")]
    for dtype, op in cases if function in REDUCING else [("bfloat16", "sum"), ("complex64", "sum")]:
        if dtype in legal(op, function):
            for root, in_group in product(roots(function, g), (False, True) if function in ROOTED else (False,)):
                run(Case(function, dtype, op, root, root_in_group=in_group, seed=which), g)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("out_layout", LAYOUTS)
def test_every_layout(groups: list[Group], function: str, out_layout: str) -> None:
    """Every layout of the input with every one of the output, and each with itself for other dtypes."""
    for dtype in ("float32", "bfloat16", "complex128", "int64"):
        possible = layouts(dtype, dims=2)
        if out_layout not in possible:
            continue
        if function in ("broadcast", "all_reduce", "reduce"):
            possible = [out_layout]
        elif dtype != "complex128":  # which can have all of them
            possible = [out_layout, "contiguous"]
        for i, layout in enumerate(possible):
            g = groups[4 * (i % 2)]
            run(Case(function, dtype, "sum", g.size - 1, (2, 3), layout, out_layout, ASYNC[i % 3], seed=i), g)


LISTS = [function for function in FUNCTIONS if function.endswith(("all_gather", "gather", "scatter", "all_to_all"))]


@pytest.mark.slow
@pytest.mark.parametrize("function", LISTS)
@pytest.mark.parametrize("mode", ASYNC)
def test_long_lists(groups: list[Group], function: str, mode: str, size: int) -> None:
    """They travel in memory that the ranks share."""
    n = (9 << 20) // size
    run(Case(function, "uint8", "max", groups[0].size - 1, (n,), "strided", async_ranks=mode, seed=5), groups[0])


@pytest.mark.processes
@pytest.mark.parametrize("function", LISTS)
def test_the_plan_of_a_list_holds_no_tensor(groups: list[Group], function: str) -> None:
    first = start(Case(function, "float32"), groups[0])
    first.check()
    gone = [weakref.ref(x) for x, _ in first.results]
    del first
    assert [ref() for ref in gone] == [None] * len(gone)


def test_a_list_of_nothing_may_be_the_first_one_of_a_group(size: int) -> None:
    outs = [torch.empty(0, dtype=torch.bfloat16) for _ in range(size)]
    dist.all_gather(outs, torch.empty(0, dtype=torch.bfloat16), group=dist.new_group())


@pytest.mark.parametrize("factor", [0.5, torch.tensor(0.5), torch.tensor([0.5])], ids=str)
def test_premul_sum_takes_a_number_or_a_tensor(rank: int, size: int, factor: float | torch.Tensor) -> None:
    total = sum(range(1, size + 1)) * float(factor)
    for dtype in (torch.float16, torch.complex64):
        x = torch.full((4,), rank + 1, dtype=dtype)
        dist.all_reduce(x, premul(factor))
        assert torch.equal(x, torch.full((4,), total, dtype=dtype))


@pytest.mark.parametrize("as_list", [False, True], ids=["single", "list"])
@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_uneven_all_to_all(rank: int, size: int, as_list: bool, async_op: bool) -> None:
    """Rank r sends (r + k) % 3 rows to rank k. Some ranks send none to others."""
    to = [(rank + k) % 3 for k in range(size)]
    of = [(r + rank) % 3 for r in range(size)]
    rows = [torch.full((n, 2), 10 * rank + k, dtype=torch.int16) for k, n in enumerate(to)]
    expected = [torch.full((n, 2), 10 * r + rank, dtype=torch.int16) for r, n in enumerate(of)]
    if as_list:
        outs = [torch.zeros_like(e) for e in expected]
        work = dist.all_to_all(outs, rows, async_op=async_op)
    else:
        whole = torch.zeros((sum(of), 2), dtype=torch.int16)
        work = dist.all_to_all_single(whole, torch.cat(rows), of, to, async_op=async_op)
        outs = list(whole.split(of))
    if async_op:
        work.wait()
    for found, e in zip(outs, expected, strict=True):
        assert torch.equal(found, e)


def test_gradients_and_graphs_are_left_alone(size: int) -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    dist.all_reduce(y)
    assert y.tolist() == [2.0 * size] * 3
    assert x.grad is None
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def draw(rng: np.random.Generator, g: Group, seed: int) -> Case:
    function = str(rng.choice(list(FUNCTIONS)))
    op = str(rng.choice([*OP_OF, "premul_sum"])) if function in REDUCING else "sum"
    dtype = str(rng.choice(legal(op, function) if function in REDUCING else list(DTYPES)))
    lengths = rng.choice([0, 1, 2, 3, 17], rng.integers(0, 4), p=[0.04, 0.24, 0.3, 0.3, 0.12])
    long = rng.random()
    shape = (30_000,) if long < 0.01 else (300,) if long < 0.05 else tuple(int(n) for n in lengths)
    root, in_group = int(rng.integers(g.size)), bool(rng.integers(2))
    layout, out_layout = (str(rng.choice(layouts(dtype, len(shape)))) for _ in range(2))
    async_ranks = str(rng.choice(ASYNC, p=[0.6, 0.2, 0.2]))
    return Case(function, dtype, op, root, shape, layout, out_layout, async_ranks, in_group, seed)


@pytest.mark.slow
def test_random_calls(groups: list[Group]) -> None:
    """Up to eight calls are under way at a time, in several groups; ranks draw alike."""
    seed = int(os.environ.get("MPICOLL_SEED", "20261121"))
    print(f"MPICOLL_SEED={seed}")
    rng = np.random.default_rng(seed)
    under_way: list[Started] = []
    for i in range(DRAWS):
        g = groups[int(rng.integers(len(groups)))]
        case = draw(np.random.default_rng([seed, i]), g, i)
        finish = int(rng.integers(9))
        if g.rank is not None:
            under_way.append(start(case, g))
        if len(under_way) > finish:
            for started in under_way:
                started.check()
            under_way.clear()
    for started in under_way:
        started.check()


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("strided", [False, True])
def test_reduce_scatter_of_different_shapes(async_op: bool, strided: bool, rank: int, size: int) -> None:
    """One of them is empty. Two lists of as many elements are divided in two ways."""
    for dtype, turn in product((torch.float32, torch.bfloat16), (0, 1, 0)):
        rows = [(r + turn) % size for r in range(size)]
        inputs = [torch.full((n, 2), rank + r + 1.0, dtype=dtype) for r, n in enumerate(rows)]
        mine = rows[rank]
        output = torch.empty(2, mine, dtype=dtype).t() if strided else torch.empty(mine, 2, dtype=dtype)
        work = dist.reduce_scatter(output, inputs, async_op=async_op)
        if async_op:
            work.wait()
        assert output.tolist() == [[sum(range(size)) + size * (rank + 1.0)] * 2] * mine
        with pytest.raises(ArgumentError, match=rf"input_list\[{rank}\]: expected shape \(7,\); given \({mine}, 2\)"):
            dist.reduce_scatter(torch.empty(7, dtype=dtype), inputs, async_op=async_op)
