"""What training programs use beside the model: pipelines and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor

from tests.ranks.torch.programs.training import (
    STEPS,
    WIDTH,
    part,
    sgd,
    sharded,
    shared_folder,
    tokens,
    train,
    transformer,
    vectors,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


# -- a model in stages, one a rank --


MICRO_BATCHES = 4
SCHEDULES: list[tuple[Any, int]] = [(ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)]
"""And how many stages each rank has."""


def stages(n: int) -> list[nn.Module]:
    torch.manual_seed(7)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(n)]


@pytest.mark.parametrize(("kind", "each"), SCHEDULES)
def test_schedules(kind: Any, each: int, rank: int, size: int) -> None:
    """Output, loss and gradients are those of the stages one after another."""
    x, y = vectors(0)
    modules, numbers = stages(each * size), range(rank, each * size, size)
    expected = nn.Sequential(*modules)(x)
    loss = nn.functional.mse_loss(expected, y)
    loss.backward()
    mine = [stages(each * size)[i] for i in numbers]
    made = [PipelineStage(m, i, each * size, torch.device("cpu")) for m, i in zip(mine, numbers, strict=True)]
    schedule = kind(made[0] if each == 1 else made, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    losses: list[torch.Tensor] = []
    given = (x,) if rank == 0 else ()
    if rank == size - 1:
        torch.testing.assert_close(schedule.step(*given, target=y, losses=losses), expected.detach())
        torch.testing.assert_close(torch.stack(losses).mean().detach(), loss.detach())
    else:
        schedule.step(*given)
    for module, i in zip(mine, numbers, strict=True):
        for p, q in zip(module.parameters(), modules[i].parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)


# -- torch.distributed.checkpoint: what some ranks save, another number of ranks loads --


@pytest.fixture
def folder(default_group: None) -> Iterator[Path]:
    with shared_folder() as name:
        yield Path(name)


def trained(mesh: DeviceMesh | None, steps: range) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The transformer, sharded over ``mesh``, and its optimizer, trained for these steps."""
    model = transformer() if mesh is None else sharded(transformer(), mesh)
    optimizer = sgd(model.parameters())
    go_on(model, optimizer, mesh, steps)
    return model, optimizer


def go_on(model: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh | None, steps: range) -> None:
    rank, size = (mesh.get_local_rank(), mesh.size()) if mesh else (0, 1)
    train(model, (part(tokens(step), rank, size) for step in steps), lambda _: optimizer)


def parameters_of(model: nn.Module) -> list[torch.Tensor]:
    return [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in model.parameters()]


def test_save_on_all_load_on_half(folder: Path, rank: int, size: int) -> None:
    """Half of the ranks continue the training, and it ends as if it had not been interrupted."""
    model, optimizer = trained(init_device_mesh("cpu", (size,)), range(STEPS))
    parameters, state = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": state}, checkpoint_id=folder)
    half = list(range(max(1, size // 2)))
    group = dist.new_group(half)
    if rank in half:
        mesh = DeviceMesh.from_group(group, "cpu")
        model, optimizer = trained(mesh, range(0))
        parameters, state = get_state_dict(model, optimizer)
        dcp.load({"model": parameters, "optimizer": state}, checkpoint_id=folder, process_group=group)
        set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=state)
        go_on(model, optimizer, mesh, range(STEPS, 2 * STEPS))
        alone, _ = trained(None, range(2 * STEPS))
        torch.testing.assert_close(parameters_of(model), parameters_of(alone), rtol=1e-4, atol=1e-5)


def test_asynchronous_save(folder: Path, size: int) -> None:
    """The save runs in the background, on a group of its own."""
    mesh = init_device_mesh("cpu", (size,))
    model, optimizer = trained(mesh, range(1))
    before = parameters_of(model)
    saving: Any = dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder, process_group=dist.new_group())
    go_on(model, optimizer, mesh, range(1, 3))
    saving.result()
    loaded, _ = trained(mesh, range(0))
    state = {"model": loaded.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    loaded.load_state_dict(state["model"])
    assert all(torch.equal(x, y) for x, y in zip(parameters_of(loaded), before, strict=True))
