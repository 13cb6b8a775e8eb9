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
