"""torch.distributed.checkpoint: what some ranks save, another number of ranks loads."""

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
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.ranks.torch.programs.training import STEPS, loss_of, part, sgd, shared_folder, tokens, transformer

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


@pytest.fixture
def folder(default_group: None) -> Iterator[Path]:
    with shared_folder() as name:
        yield Path(name)


def trained(mesh: DeviceMesh | None, steps: range) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The transformer, sharded over ``mesh``, and its optimizer, trained for these steps."""
    model = transformer()
    if mesh is not None:
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = sgd(model.parameters())
    go_on(model, optimizer, mesh, steps)
    return model, optimizer


def go_on(model: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh | None, steps: range) -> None:
    rank, size = (mesh.get_local_rank(), mesh.size()) if mesh else (0, 1)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, part(tokens(step), rank, size)).backward()
        optimizer.step()


def whole(model: nn.Module) -> list[torch.Tensor]:
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
        torch.testing.assert_close(whole(model), whole(alone), rtol=1e-4, atol=1e-5)


def test_asynchronous_save(folder: Path, size: int) -> None:
    """The save runs in the background, on a group of its own."""
    mesh = init_device_mesh("cpu", (size,))
    model, optimizer = trained(mesh, range(1))
    before = whole(model)
    saving: Any = dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder, process_group=dist.new_group())
    go_on(model, optimizer, mesh, range(1, 3))
    saving.result()
    loaded, _ = trained(mesh, range(0))
    state = {"model": loaded.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    loaded.load_state_dict(state["model"])
    assert all(torch.equal(x, y) for x, y in zip(whole(loaded), before, strict=True))
