"""A model in stages, one a rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from tests.ranks.torch.programs.training import WIDTH, vectors

MICRO_BATCHES = 4


def stages(n: int) -> list[nn.Module]:
    torch.manual_seed(7)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(n)]


def reference(modules: list[nn.Module]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and loss of the stages one after another, with gradients in their parameters."""
    x, y = vectors(0)
    out = nn.Sequential(*modules)(x)
    loss = nn.functional.mse_loss(out, y)
    loss.backward()
    return out.detach(), loss.detach()


def assert_same_gradients(found: nn.Module, expected: nn.Module) -> None:
    for p, q in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B])
def test_schedules(kind: type, rank: int, size: int) -> None:
    modules = stages(size)
    expected, loss = reference(modules)
    mine = stages(size)[rank]
    stage = PipelineStage(mine, rank, size, torch.device("cpu"))
    schedule = kind(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    x, y = vectors(0)
    losses: list[torch.Tensor] = []
    given = (x,) if rank == 0 else ()
    out = schedule.step(*given, target=y, losses=losses) if rank == size - 1 else schedule.step(*given)
    if rank == size - 1:
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(torch.stack(losses).mean().detach(), loss)
    assert_same_gradients(mine, modules[rank])


def test_interleaved_schedule(rank: int, size: int) -> None:
    """Each rank has two stages."""
    modules = stages(2 * size)
    expected, _ = reference(modules)
    mine = [stages(2 * size)[i] for i in (rank, rank + size)]
    parts: list[Any] = [
        PipelineStage(m, i, 2 * size, torch.device("cpu")) for m, i in zip(mine, (rank, rank + size), strict=True)
    ]
    schedule = ScheduleInterleaved1F1B(parts, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    x, y = vectors(0)
    given = (x,) if rank == 0 else ()
    out = schedule.step(*given, target=y) if rank == size - 1 else schedule.step(*given)
    if rank == size - 1:
        torch.testing.assert_close(out, expected)
    for m, i in zip(mine, (rank, rank + size), strict=True):
        assert_same_gradients(m, modules[i])
