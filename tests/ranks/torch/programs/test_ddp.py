"""DistributedDataParallel: after some steps every rank's parameters are those of one process on the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mpicoll.errors import ArgumentError
from mpicoll.torch import ddp as of_reducer
from tests.ranks.torch.programs.overlap import backward_waits
from tests.ranks.torch.programs.training import (
    STEPS,
    WIDTH,
    Batch,
    assert_equal_to_rounding,
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

PROGRAMS = [(convnet, images), (transformer, tokens)]


@pytest.mark.parametrize("bucket_mb", [25, 0.001], ids=["one bucket", "many buckets"])
@pytest.mark.parametrize(("make", "data"), PROGRAMS, ids=["convnet", "transformer"])
def test_ddp(
    make: Callable[[], nn.Module], data: Callable[[int], Batch], bucket_mb: float, rank: int, size: int
) -> None:
    alone = train(make(), map(data, range(STEPS)))
    ddp = DistributedDataParallel(make(), bucket_cap_mb=bucket_mb)
    train(ddp, (part(data(step), rank, size) for step in range(STEPS)))
    assert_equal_to_rounding(ddp, alone)


@pytest.mark.parametrize("how", ["static_graph", "gradient_as_bucket_view"])
def test_ddp_options(how: str, rank: int, size: int) -> None:
    alone = train(convnet(), map(images, range(STEPS)))
    options: dict[str, Any] = {how: True}
    ddp = DistributedDataParallel(convnet(), bucket_cap_mb=0.001, **options)
    train(ddp, (part(images(step), rank, size) for step in range(STEPS)))
    assert_equal_to_rounding(ddp, alone)


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


def test_gradient_accumulation(rank: int, size: int) -> None:
    """Two micro-batches a step; the first one's backward communicates nothing."""
    alone = train(convnet(), map(images, range(STEPS)))
    ddp = DistributedDataParallel(convnet())
    optimizer = sgd(ddp.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        mine = part(images(step), rank, size)
        for k in range(2):
            with ddp.no_sync() if k == 0 else nullcontext():
                half = mine[0].tensor_split(2)[k], mine[1].tensor_split(2)[k]
                (loss_of(ddp, half) * len(half[0]) / len(mine[0])).backward()
        optimizer.step()
    assert_equal_to_rounding(ddp, alone)


class TwoHeads(nn.Module):
    """The caller chooses the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.heads = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](self.body(x))


def test_find_unused_parameters(rank: int, size: int) -> None:
    """In each step some ranks use one head and others the other. In the last step no rank uses the second."""
    torch.manual_seed(4)
    one = TwoHeads()
    ddp = DistributedDataParallel(copy.deepcopy(one), find_unused_parameters=True)
    for model, ranks in ((one, range(size)), (ddp, [rank])):
        optimizer = sgd(model.parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            for r in ranks:
                x, y = part(vectors(step), r, size)
                head = 0 if step == STEPS - 1 else (r + step) % 2
                loss = nn.functional.mse_loss(model(x, head), y)
                (loss if model is ddp else loss / size).backward()
            optimizer.step()
    assert_equal_to_rounding(ddp, one)


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


def test_a_switch_that_says_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_DDP_OVERLAP", "yes")
    with pytest.raises(ArgumentError, match="MPICOLL_DDP_OVERLAP: expected 0 or 1, or nothing; given 'yes'"):
        of_reducer.waits()


def test_two_models_on_two_groups(rank: int, size: int) -> None:
    """The models take turns, and each group has a communicator of its own."""
    groups = [dist.new_group(), dist.new_group()]
    alone = [train(make(), map(data, range(STEPS))) for make, data in PROGRAMS]
    ddps = [DistributedDataParallel(make(), process_group=g) for (make, _), g in zip(PROGRAMS, groups, strict=True)]
    optimizers = [sgd(ddp.parameters()) for ddp in ddps]
    for step in range(STEPS):
        losses = [loss_of(ddp, part(data(step), rank, size)) for ddp, (_, data) in zip(ddps, PROGRAMS, strict=True)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    for ddp, one in zip(ddps, alone, strict=True):
        assert_equal_to_rounding(ddp, one)
