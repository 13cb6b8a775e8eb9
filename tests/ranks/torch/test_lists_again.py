"""Lists of tensors in calls that were made before, which the kernel makes: other tensors, in other memory and layouts,
and calls under way meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mpicoll.torch as dist
from mpicoll.errors import ArgumentError, DtypeError

pytestmark = pytest.mark.sizes(1, 2, 3)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "new": lambda x: x.clone(),
    "strided": lambda x: torch.stack([x, x], 1)[:, 0],
    "backwards in memory": lambda x: x.flip(0).as_strided((len(x),), (1,)).flip(0),
    "a parameter": lambda x: torch.nn.Parameter(x.clone()),
}
N = 5


@pytest.fixture
def world() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def numbers(rank: int, block: int, turn: int) -> Tensor:
    """What a rank gives as this block of a list."""
    return torch.arange(N, dtype=torch.float64) + 100 * rank + 10 * block + turn


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("under_way", [False, True], ids=["alone", "beside another"])
def test_lists_again(world: tuple[int, int], layout: str, under_way: bool) -> None:
    rank, size = world
    there, ranks = LAYOUTS[layout], range(size)
    for turn in range(4):
        beside = [torch.empty(N, dtype=torch.float64) for _ in ranks]
        other = dist.all_gather(beside, numbers(rank, 7, turn), async_op=True) if under_way else None
        got = [there(torch.zeros(N, dtype=torch.float64)) for _ in ranks]
        given = [there(numbers(rank, block, turn)) for block in ranks]
        dist.all_gather(got, given[0])
        assert all(torch.equal(got[r], numbers(r, 0, turn)) for r in ranks)
        dist.all_to_all(got, given)
        assert all(torch.equal(got[r], numbers(r, rank, turn)) for r in ranks)
        dist.gather(given[0], got if rank == size - 1 else None, dst=size - 1)
        if rank == size - 1:
            assert all(torch.equal(got[r], numbers(r, 0, turn)) for r in ranks)
        dist.scatter(got[0], given if rank == 0 else [])
        assert torch.equal(got[0], numbers(0, rank, turn))
        dist.reduce_scatter(got[0], given)
        assert torch.equal(got[0], sum((numbers(r, rank, turn) for r in ranks), torch.zeros(N)))
        if other is not None:
            other.wait()
            assert all(torch.equal(beside[r], numbers(r, 7, turn)) for r in ranks)


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "in one memory"])
def test_long_lists_that_lie_one_after_another(world: tuple[int, int], apart: bool) -> None:
    rank, size = world
    n = 9_000
    memory = torch.full((2, size * n), -1.0)
    got = [*memory[0].chunk(size)]
    given = [*(torch.empty(size * n) if apart else memory[1]).chunk(size)]
    for block, each in enumerate(given):
        each[:] = 10 * rank + block
    for _ in range(2):
        dist.all_to_all(got, given)
        assert all((got[r] == 10 * r + rank).all() for r in range(size))
        dist.all_gather(got, given[0] if apart else got[0].fill_(rank))
        assert all((got[r] == (10 * r if apart else r)).all() for r in range(size))
        result = torch.empty(n)
        dist.reduce_scatter(result, given)
        assert (result == sum(10 * r + rank for r in range(size))).all()
    dist.all_gather([*reversed(got)], given[0])
    assert all((got[-1 - r] == 10 * r).all() for r in range(size))


def test_uneven_lists_again(world: tuple[int, int]) -> None:
    """Two of as many elements, which are divided in two ways."""
    rank, size = world
    for turn in range(4):
        lengths = [2 + (r + turn) % 2 * (r < 2 <= size) for r in range(size)]
        given = [torch.full((n,), float(rank + turn)) for n in lengths]
        result = torch.empty(lengths[rank])
        dist.reduce_scatter(result, given)
        assert (result == sum(r + turn for r in range(size))).all()


def test_mistakes_in_lists_that_were_right_before(world: tuple[int, int]) -> None:
    _, size = world
    x, parts = torch.ones(N), [torch.empty(N) for _ in range(size)]
    wrong: list[tuple[type[Exception], Any]] = [
        (DtypeError, [*parts[1:], torch.empty(N, dtype=torch.float64)]),
        (ArgumentError, [*parts[1:], torch.empty(1).expand(N)]),
        (ArgumentError, [*parts[1:], torch.empty(N + 1)]),
        (ArgumentError, [*parts, torch.empty(N)]),
        (ArgumentError, []),
        (ArgumentError, x),
    ]
    for error, given in wrong:
        dist.all_gather(parts, x)
        with pytest.raises(error):
            dist.all_gather(given, x)
    dist.all_gather(parts, x)
    assert all((each == 1).all() for each in parts)
