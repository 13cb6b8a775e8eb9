"""The registered backend on tensors of a simulated device: torch.distributed's functions, and DDP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch
from mpicoll.errors import DeviceError
from mpicoll.torch.registered_group import RegisteredGroup, bound_device
from tests.devices.tensors import SimulatedGpu, values
from tests.ranks.torch.cases import Case, Group, run

pytestmark = pytest.mark.first_mpi


@pytest.mark.slow
@pytest.mark.parametrize("function", ["all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor"])
def test_functions(gpu: SimulatedGpu, function: str, rank: int, size: int) -> None:
    for mode in ("none", "all"):
        case = Case(function, "float32", shape=(5,), async_ranks=mode, device=gpu.name)
        run(case, Group("world", None, list(range(size)), rank), dist)


def ddp_step(gpu: SimulatedGpu, rank: int, size: int) -> tuple[list[Any], list[Any]]:
    """The gradients after a step on the device, and what they must be."""
    torch.manual_seed(0)
    host = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))
    inputs = torch.randn(size, 4, 6)
    there = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))
    for mine, layer in zip(host, there, strict=True):
        for name, p in mine.named_parameters():
            setattr(layer, name, torch.nn.Parameter(gpu.tensor(p)))
    with gpu.takes_new_tensors():
        model = DistributedDataParallel(there, bucket_cap_mb=1e-4)
        model(gpu.tensor(inputs[rank])).square().mean().backward()
    found = [values(p.grad) for p in there.parameters()]
    (sum(host(x).square().mean() for x in inputs) / size).backward()
    return found, [p.grad.tolist() for p in host.parameters()]


def is_right(found: list[Any], expected: list[Any]) -> bool:
    return all(np.allclose(f, e, atol=1e-5) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("overlap", ["0", "1"])
def test_ddp(gpu: SimulatedGpu, rank: int, size: int, overlap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buckets are on the device, and the collectives come after the kernels of the backward pass."""
    monkeypatch.setattr(dist.group.WORLD, "reducer_waits", overlap == "0")
    for _ in range(5):
        copies = gpu.counts["copy"]
        assert is_right(*ddp_step(gpu, rank, size))
        assert gpu.counts["copy"] > copies


def test_the_device_of_a_new_group_is_found() -> None:
    """torch refuses device_id where it sees no GPU. So this looks as mpicoll does while torch makes a group."""

    def _new_process_group_helper(device_id: Any) -> torch.device | None:
        return bound_device()

    assert _new_process_group_helper(torch.device("cuda", 2)) == torch.device("cuda", 2)
    assert _new_process_group_helper(torch.device("cpu")) is None
    assert _new_process_group_helper(None) is None
    assert bound_device() is None


def test_a_group_of_torch_s_holds_tensors_to_its_device(gpu: SimulatedGpu, size: int) -> None:
    world: Any = dist.group.WORLD
    comm = world.comm.split(0)
    group = RegisteredGroup(comm, range(size), "held", world.timeout, None, gpu.torch_device)
    x, y = gpu.tensor([1.0]), SimulatedGpu().tensor([1.0])
    with pytest.raises(DeviceError, match=f"all_reduce: tensor: .* {gpu.name}, the device of the group; given cuda:"):
        mpicoll.torch.all_reduce(y, group=group)
    mpicoll.torch.all_reduce(x, group=group)
    assert values(x) == [size]
    part = group.split_group(range(size))
    assert part.device == part.bound_device_id == gpu.torch_device
    part.shutdown()
    group.shutdown()
