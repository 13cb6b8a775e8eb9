"""torch.inference_mode: calls inside and outside it, in any order, on tensors that were made inside or outside."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, product
from typing import Any

import pytest
import torch

from tests.ranks.torch.api import dist

pytestmark = pytest.mark.first_mpi

MODES = [(inside, async_op) for inside in (True, False) for async_op in (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("made_inside", [True, False], ids=["made inside", "made outside"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("n", [3, 5000])
def test_calls_again_and_again(n: int, dtype: torch.dtype, made_inside: bool, strided: bool, size: int) -> None:
    """Each mode after each other one: the plan that is kept from the first call serves the later ones."""

    def new(n: int = n) -> torch.Tensor:
        with torch.inference_mode(made_inside):
            return torch.zeros(2 * n, dtype=dtype)[::2] if strided else torch.zeros(n, dtype=dtype)

    x, y, ys, whole = new(), new(), [new() for _ in range(size)], new(n * size)
    calls: list[tuple[Callable[[bool], Any], list[torch.Tensor], float]] = [
        (lambda a: dist.all_reduce(x, async_op=a), [x], size),
        (lambda a: dist.broadcast(x, 0, async_op=a), [x], 1),
        (lambda a: dist.all_gather(ys, x, async_op=a), ys, 1),
        (lambda a: dist.all_gather_into_tensor(whole, x, async_op=a), [whole], 1),
        (lambda a: dist.reduce_scatter(y, [x] * size, async_op=a), [y], size),
        (lambda a: dist.reduce_scatter_tensor(y, whole, async_op=a), [y], size),
        (lambda a: dist.all_to_all(ys, [x] * size, async_op=a), ys, 1),
    ]
    for inside, async_op in chain.from_iterable(product(MODES, repeat=2)):
        for call, results, value in calls:
            with torch.inference_mode():  # in which every tensor can be written to
                for each in (y, *ys):
                    each.zero_()
                for each in (x, whole):
                    each.fill_(1)
            with torch.inference_mode(inside):
                work = call(async_op)
                if work is not None:
                    work.wait()
            assert all((result == value).all() for result in results), (n, inside, async_op)


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
        dist.all_reduce(weight.grad)
        assert torch.equal(weight.grad, weight.detach() * size)
