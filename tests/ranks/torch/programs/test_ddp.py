"""DistributedDataParallel: after some steps every rank's parameters are those of one process on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch
from mpicoll.errors import ArgumentError
from mpicoll.torch import ddp as of_reducer
from mpicoll.torch import hooks
from tests.ranks.torch.programs.training import (
    STEPS,
    WIDTH,
    Batch,
    assert_equal_to_rounding,
    backward_waits,
    convnet,
    images,
    loss_of,
    mlp,
    part,
    sgd,
    tokens,
    train,
    transformer,
    vectors,
)

WAYS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch], dict[str, Any]]] = {
    "one bucket": (convnet, images, {}),
    "many buckets": (convnet, images, {"bucket_cap_mb": 0.001}),
    "transformer": (transformer, tokens, {"bucket_cap_mb": 0.001}),
    "static graph": (convnet, images, {"bucket_cap_mb": 0.001, "static_graph": True}),
    "views": (convnet, images, {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}),
}


@pytest.mark.parametrize("way", WAYS)
def test_ddp(way: str, rank: int, size: int) -> None:
    make, data, options = WAYS[way]
    ddp = DistributedDataParallel(make(), process_group=dist.new_group(), **options)
    train(ddp, (part(data(step), rank, size) for step in range(STEPS)))
    assert_equal_to_rounding(ddp, train(make(), map(data, range(STEPS))))


def test_sparse_gradients_are_refused(rank: int) -> None:
    ddp = DistributedDataParallel(nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)))
    loss = ddp(torch.tensor([rank])).sum()
    with pytest.raises(ArgumentError, match=r"all_reduce: tensor: expected a dense tensor; given a torch\.sparse"):
        loss.backward()


def test_ranks_start_from_rank_0s_parameters_and_buffers(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    cast(torch.Tensor, model[1].running_mean).fill_(float(rank))
    ddp = DistributedDataParallel(model)
    torch.manual_seed(0)
    assert torch.equal(ddp.module[0].weight, nn.Linear(3, 3).weight)
    assert torch.equal(ddp.module[1].running_mean, torch.zeros(3))


@pytest.mark.slow
def test_compiled_with_buffers(rank: int, size: int) -> None:
    """DDP broadcasts buffers before each step, which torch.compile does not make part of a graph."""
    models = [nn.Sequential(nn.BatchNorm1d(WIDTH), mlp()) for _ in range(2)]
    plain, compiled = map(DistributedDataParallel, models)
    for program in (plain, cast(nn.Module, torch.compile(compiled, backend="aot_eager"))):
        train(program, (part(vectors(step), rank, size) for step in range(STEPS)))
    assert_equal_to_rounding(compiled, models[0])


def test_join_of_uneven_inputs(rank: int, size: int) -> None:
    """Rank r has r + 1 batches: a step's gradient is the sum of those that still have one, over all ranks."""
    batches = [[vectors(10 * r + step) for step in range(r + 1)] for r in range(size)]
    one = mlp()
    optimizer = sgd(one.parameters())
    for step in range(size):
        optimizer.zero_grad()
        for of_a_rank in batches:
            if step < len(of_a_rank):
                (loss_of(one, of_a_rank[step]) / size).backward()
        optimizer.step()
    ddp = DistributedDataParallel(mlp())
    optimizer = sgd(ddp.parameters())
    with ddp.join():
        for batch in batches[rank]:
            optimizer.zero_grad()
            loss_of(ddp, batch).backward()
            optimizer.step()
    assert_equal_to_rounding(ddp, one)


@pytest.mark.parametrize(("overlap", "moment", "waits"), [("0", 60, True), ("0", 0.1, False), ("1", 60, False)])
def test_with_and_without_overlap(
    overlap: str, moment: float, waits: bool, monkeypatch: pytest.MonkeyPatch, rank: int, size: int
) -> None:
    """The backward pass waits for no longer than a moment: another rank may wait for a message that comes later."""
    monkeypatch.setenv("MPICOLL_DDP_OVERLAP", "yes")
    with pytest.raises(ArgumentError, match="MPICOLL_DDP_OVERLAP: expected 0 or 1, or nothing; given 'yes'"):
        of_reducer.waits()
    monkeypatch.setenv("MPICOLL_DDP_OVERLAP", overlap)
    monkeypatch.setattr("mpicoll.torch.ddp.MOMENT", moment)
    group = dist.new_group()
    if size > 1:
        assert backward_waits(rank, waits, process_group=group) == waits
    ddp = DistributedDataParallel(mlp(), process_group=group, bucket_cap_mb=0.001)
    alone = train(mlp(), map(vectors, range(STEPS)))
    train(ddp, (part(vectors(step), rank, size) for step in range(STEPS)))
    assert_equal_to_rounding(ddp, alone)
    dist.destroy_process_group(group)


# -- communication hooks: ours in 16 bits, and torch's own --


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
