"""torch.inference_mode: calls inside and outside it, in any order, on tensors that were made inside or outside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

from tests.ranks.torch.api import dist, through_torch

pytestmark = pytest.mark.first_mpi

MODES = [(inside, async_op) for inside in (True, False) for async_op in (False, True)]


def tensor(made_inside: bool, dtype: torch.dtype, n: int, strided: bool) -> torch.Tensor:
    with torch.inference_mode(made_inside):
        return torch.zeros(2 * n, dtype=dtype)[::2] if strided else torch.zeros(n, dtype=dtype)


def called(inside: bool, call: Callable[[], Any]) -> None:
    """Make the call and wait for it, inside the mode or outside."""
    with torch.inference_mode(inside):
        work = call()
        if work is not None:
            work.wait()


@torch.inference_mode()  # the one mode in which every tensor can be written to
def set_to(x: torch.Tensor, value: float) -> None:
    x.fill_(value)


@pytest.mark.slow
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("made_inside", [True, False], ids=["made inside", "made outside"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("algorithm", [None] if through_torch() else [None, "ring"])
def test_one_tensor_again_and_again(
    algorithm: str | None, dtype: torch.dtype, made_inside: bool, strided: bool, size: int
) -> None:
    """The plan that is kept from the first call serves the later ones."""
    how = {"algorithm": algorithm} if algorithm else {}
    for (first, second), n in product(product(MODES, repeat=2), (3, 5000)):
        x = tensor(made_inside, dtype, n, strided)
        for inside, async_op in (first, second, second):
            set_to(x, 1)
            called(inside, partial(dist.all_reduce, x, async_op=async_op, **how))
            assert (x == size).all(), (first, second, n)


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("made_inside", [True, False], ids=["made inside", "made outside"])
@pytest.mark.parametrize(("inside", "async_op"), MODES)
def test_other_collectives(inside: bool, async_op: bool, made_inside: bool, strided: bool, size: int) -> None:
    def new(n: int = 5) -> torch.Tensor:
        return tensor(made_inside, torch.bfloat16, n, strided)

    x, y, ys, whole = new(), new(), [new() for _ in range(size)], new(5 * size)
    calls: list[tuple[Callable[[], Any], list[torch.Tensor], float]] = [
        (lambda: dist.broadcast(x, 0, async_op=async_op), [x], 1),
        (lambda: dist.all_gather(ys, x, async_op=async_op), ys, 1),
        (lambda: dist.all_gather_into_tensor(whole, x, async_op=async_op), [whole], 1),
        (lambda: dist.reduce_scatter(y, [x] * size, async_op=async_op), [y], size),
        (lambda: dist.reduce_scatter_tensor(y, whole, async_op=async_op), [y], size),
        (lambda: dist.all_to_all(ys, [x] * size, async_op=async_op), ys, 1),
    ]
    set_to(x, 1)
    for call, results, value in calls:
        for result in results:
            if result is not x:
                set_to(result, 0)
        called(inside, call)
        assert all((result == value).all() for result in results)


def test_training_goes_on_after_an_evaluation(size: int) -> None:
    weight = torch.nn.Parameter(torch.ones(300, dtype=torch.bfloat16))
    for _ in range(3):
        with torch.inference_mode():
            loss = weight.square().mean()
            dist.all_reduce(loss)
            dist.all_reduce(weight)
            weight.div_(size)
        weight.grad = None
        (weight.float().square().sum() / 2).backward()
        assert weight.grad is not None
        dist.all_reduce(weight.grad)
        assert torch.equal(weight.grad, weight.detach() * size)
