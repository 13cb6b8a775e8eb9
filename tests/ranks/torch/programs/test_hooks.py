"""DistributedDataParallel's communication hooks: ours in 16 bits, and torch's own, on the registered backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch
from mpicoll.errors import ArgumentError
from mpicoll.torch import hooks
from tests.ranks.torch.programs.training import (
    STEPS,
    assert_equal_to_rounding,
    mlp,
    part,
    tokens,
    train,
    transformer,
    vectors,
)

OURS = {torch.bfloat16: hooks.bf16_compress_hook, torch.float16: hooks.fp16_compress_hook}
by_dtype = pytest.mark.parametrize("dtype", OURS, ids=str)


HOOKS: dict[str, tuple[Callable[[DistributedDataParallel], None], float]] = {
    "bfloat16": (lambda ddp: ddp.register_comm_hook(None, hooks.bf16_compress_hook), torch.finfo(torch.bfloat16).eps),
    "float16": (lambda ddp: ddp.register_comm_hook(None, hooks.fp16_compress_hook), torch.finfo(torch.float16).eps),
    "torch's": (lambda ddp: ddp.register_comm_hook(None, default_hooks.allreduce_hook), 1e-5),
    "torch's in float16": (lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook), 1e-3),
    # Its other one in C++, FP16_COMPRESS, takes no result that Python has set.
    "torch's in C++": (lambda ddp: ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE), 1e-5),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_trains_as_in_32_bits(hook: str, rank: int, size: int) -> None:
    """To the rounding of each step's gradients: a gradient of at most 1 moves a parameter by 0.1 and what follows."""
    register, atol = HOOKS[hook]
    ddp = DistributedDataParallel(transformer(), bucket_cap_mb=0.001)
    register(ddp)
    train(ddp, (part(tokens(step), rank, size) for step in range(STEPS)))
    assert_equal_to_rounding(ddp, train(transformer(), map(tokens, range(STEPS))), rtol=1e-4, atol=atol)


def gradient(hook: Any, state: Any, mine: float, group: Any = None) -> float:
    """The gradient that a model with one parameter has after the hook, if this rank's is ``mine``."""
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False), process_group=group)
    ddp.register_comm_hook(state, hook)
    ddp(torch.full((1, 1), mine)).sum().backward()
    found = ddp.module.weight.grad
    assert found is not None
    return float(found)


@by_dtype
def test_it_travels_in_16_bits(dtype: torch.dtype) -> None:
    assert gradient(OURS[dtype], None, 1 + torch.finfo(dtype).eps / 4) == 1.0


def test_a_sum_that_float16_does_not_hold() -> None:
    assert gradient(hooks.fp16_compress_hook, None, 49152.0) == 49152.0


@by_dtype
def test_state_is_the_group(dtype: torch.dtype, rank: int, size: int) -> None:
    """The hook's group may be another than the model's, and the model's may be of another backend."""
    backwards = dist.new_group(list(range(size)))
    gloo = dist.new_group(backend="gloo")
    own = [dist.new_group([r]) for r in range(size)][rank]
    average = (size - 1) / 2
    assert gradient(OURS[dtype], dist.group.WORLD, float(rank)) == average
    assert gradient(OURS[dtype], backwards, float(rank), backwards) == average
    assert gradient(OURS[dtype], backwards, float(rank), gloo) == average
    assert gradient(OURS[dtype], own, float(rank), own) == rank


def test_state_that_is_no_group() -> None:
    with pytest.raises(ArgumentError, match=r"compress_hook: group: expected a group of mpicoll.torch"):
        hooks.bf16_compress_hook("gloo", None)
    with pytest.raises(ArgumentError, match="compress_hook: group: expected a group that this rank is in"):
        hooks.bf16_compress_hook(mpicoll.torch.GroupMember.NON_GROUP_MEMBER, None)


def test_powersgd(rank: int, size: int) -> None:
    """Low-rank approximations with error feedback are linear in the gradients once their average is known: the ranks'
    training is that of one process, which does the same by itself on the whole batch."""
    one = [dist.new_group([r]) for r in range(size)][rank]
    models = []
    for group, r, n in ((one, 0, 1), (dist.group.WORLD, rank, size)):
        ddp = DistributedDataParallel(mlp(32), process_group=group)
        state = PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook)
        train(ddp, (part(vectors(step, 32), r, n) for step in range(2 * STEPS)))
        rate, before, after = state.compression_stats()
        assert rate > 1
        assert before > after > 0
        models.append(ddp.module)
    assert_equal_to_rounding(models[1], models[0])
