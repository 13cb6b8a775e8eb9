"""DDP, FSDP2 and mixed groups on a GPU. These need one; what can be shown without is in test_devices.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from mpicoll.torch.private import BACKENDS_IN_PYTHON
from tests.ranks.torch.programs.training import STEPS, Batch, assert_equal_to_rounding, part, tokens, train, transformer

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU here")]
CYCLES = 100_000_000
"""What torch.cuda._sleep keeps a GPU busy for: tens of milliseconds, in which a call that does not wait is wrong."""


@pytest.fixture
def of_torch(default_group: None, request: pytest.FixtureRequest) -> Iterator[int]:
    """The rank, in a default group of ``backend="mpicoll"`` or of the one that is asked for."""
    backend = getattr(request, "param", "mpicoll")
    if "," in backend and not BACKENDS_IN_PYTHON:
        pytest.skip("torch takes no backend in Python before 2.14")
    if "nccl" in backend and torch.cuda.device_count() < dist.get_world_size():
        pytest.skip("NCCL needs a GPU for each rank")
    torch.cuda.set_device(dist.get_node_local_rank() % torch.cuda.device_count())
    dist.destroy_process_group()
    dist.init_process_group(backend, "mpi://")
    yield dist.get_rank()
    dist.destroy_process_group()


def on_gpu(batch: Batch) -> Batch:
    return batch[0].cuda(), batch[1].cuda()


def my_parts(rank: int) -> Iterator[Batch]:
    return (on_gpu(part(tokens(step), rank, dist.get_world_size())) for step in range(STEPS))


def trained_alone() -> torch.nn.Module:
    return train(transformer().cuda(), (on_gpu(tokens(step)) for step in range(STEPS)))


@pytest.mark.parametrize("of_torch", ["mpicoll", "cpu:gloo,cuda:mpicoll"], indirect=True)
@pytest.mark.parametrize("hook", [None, bf16_compress_hook], ids=["no hook", "bf16"])
def test_ddp(of_torch: int, hook: Any) -> None:
    ddp = DistributedDataParallel(
        transformer().cuda(), device_ids=[torch.cuda.current_device()], bucket_cap_mb=0.001
    )  # fmt: skip
    if hook is not None:
        ddp.register_comm_hook(dist.new_group(backend="mpicoll"), hook)
    train(ddp, my_parts(of_torch))
    rough = {"rtol": 5e-2, "atol": 2e-2} if hook else {"rtol": 1e-3, "atol": 1e-4}
    assert_equal_to_rounding(ddp, trained_alone(), **rough)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("of_torch", ["mpicoll", "cpu:gloo,cuda:mpicoll"], indirect=True)
def test_fsdp2(of_torch: int) -> None:
    model, mesh = transformer().cuda(), init_device_mesh("cuda", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, my_parts(of_torch))
    alone = dict(trained_alone().named_parameters())
    for name, p in model.named_parameters():
        assert isinstance(p, DTensor)
        torch.testing.assert_close(p.full_tensor(), alone[name], rtol=1e-3, atol=1e-4)


def calls_of_mpicoll(device: str) -> int:
    group: Any = dist.group.WORLD
    number: int = group._get_backend(torch.device(device))._get_sequence_number_for_group()
    return number


@pytest.mark.parametrize(
    ("of_torch", "ours"), [("cpu:mpicoll,cuda:nccl", "cpu"), ("cpu:gloo,cuda:mpicoll", "cuda")], indirect=["of_torch"]
)
def test_each_device_has_its_backend(of_torch: int, ours: str) -> None:
    """A tensor goes to the backend that is named for its device, and never to the other one."""
    for device in ("cpu", "cuda"):
        before = calls_of_mpicoll(ours)
        x = torch.ones(3, device=device)
        dist.all_reduce(x)
        assert x.tolist() == [dist.get_world_size()] * 3
        assert calls_of_mpicoll(ours) - before == (device == ours)


def test_a_future_s_callback_works_on_streams(of_torch: int) -> None:
    """What a callback hands in comes after the result, and what waits for its future comes after that."""
    for _ in range(20):
        x = torch.zeros(100_000, device="cuda")
        torch.cuda._sleep(CYCLES)
        x.fill_(1)
        work = dist.all_reduce(x, async_op=True)
        doubled = work.get_future().then(lambda done: done.value()[0] * 2).wait()
        assert doubled.unique().tolist() == [2.0 * dist.get_world_size()]
