"""What training programs use beside the model: optimizers in shards, batch norms, samplers, averages of models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.ranks.torch.programs.training import STEPS, assert_equal_to_rounding, loss_of, mlp, part, sgd, train, vectors


@pytest.mark.parametrize("as_bucket_view", [False, True])
def test_zero_redundancy_optimizer(as_bucket_view: bool, rank: int, size: int) -> None:
    """Each rank keeps the optimizer's state of a part of the parameters; the parameters are those of one process."""

    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    alone = train(mlp(), map(vectors, range(STEPS)), adam)
    ddp = DistributedDataParallel(mlp())
    zero = ZeroRedundancyOptimizer(
        ddp.parameters(), torch.optim.Adam, parameters_as_bucket_view=as_bucket_view, lr=0.01
    )
    train(ddp, (part(vectors(step), rank, size) for step in range(STEPS)), lambda _: zero)
    assert_equal_to_rounding(ddp, alone)
    mine = sum(len(group["params"]) for group in zero.optim.param_groups)
    assert size == 1 or mine < len(list(ddp.parameters()))
    zero.consolidate_state_dict(to=size - 1)
    if rank == size - 1:
        assert len(zero.state_dict()["state"]) == len(list(ddp.parameters()))


def test_zero_redundancy_optimizer_joins(rank: int, size: int) -> None:
    """Uneven inputs: rank r has r + 1 batches."""
    ddp = DistributedDataParallel(mlp())
    zero = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    with Join([ddp, zero]):
        for step in range(rank + 1):
            zero.zero_grad()
            loss_of(ddp, vectors(10 * rank + step)).backward()
            zero.step()
    for p in ddp.parameters():
        everywhere = [torch.empty_like(p) for _ in range(size)]
        dist.all_gather(everywhere, p.detach())
        assert all(torch.equal(x, everywhere[0]) for x in everywhere)


def test_local_steps_and_averages(rank: int, size: int) -> None:
    """Post-local SGD: each rank trains by itself. After the first and the third step all ranks hold the mean."""
    models = [mlp() for _ in range(size)]
    optimizers = [sgd(m.parameters()) for m in models]
    for step in range(STEPS):
        for r, (m, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss_of(m, vectors(10 * r + step)).backward()
            optimizer.step()
        if step % 2 == 0:
            with torch.no_grad():
                for ps in zip(*(m.parameters() for m in models), strict=True):
                    mean = torch.stack(ps).mean(0)
                    for p in ps:
                        p.copy_(mean)
    mine = mlp()
    averaged = PostLocalSGDOptimizer(sgd(mine.parameters()), PeriodicModelAverager(period=2))
    train(mine, (vectors(10 * rank + step) for step in range(STEPS)), lambda _: averaged)
    assert_equal_to_rounding(mine, models[rank])
