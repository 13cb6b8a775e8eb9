"""Ours beside other backends in one group: where torch takes a backend in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch
from mpicoll.errors import ArgumentError, StateError
from mpicoll.torch.private import BACKENDS_IN_PYTHON
from mpicoll.torch.registered_group import DeviceBackend
from tests.ranks.torch.cases import FUNCTIONS, Case, Group, run
from tests.ranks.torch.programs.training import backward_waits

needs_one = pytest.mark.skipif(not BACKENDS_IN_PYTHON, reason="torch takes no backend in Python before 2.14")


@pytest.fixture(autouse=True)
def without_group(default_group: None) -> Iterator[None]:
    dist.destroy_process_group()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def serving(device: str) -> Any:
    return dist.group.WORLD._get_backend(torch.device(device))


@pytest.fixture
def ours_on_the_cpu() -> DeviceBackend:
    dist.init_process_group("cpu:mpicoll,cuda:gloo", "mpi://")
    found = serving("cpu")
    assert isinstance(found, DeviceBackend)
    assert type(serving("cuda")).__name__ == "ProcessGroupGloo"
    return found


@needs_one
def test_collectives(ours_on_the_cpu: DeviceBackend) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    world = Group("world", None, list(range(size)), rank)
    for function in FUNCTIONS:
        run(Case(function, "float32"), world, dist)
    dist.barrier()
    found: list[object] = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": r} for r in range(size)]
    x = torch.empty(1)
    sent = dist.isend(torch.tensor([float(rank)]), (rank + 1) % size)
    dist.recv(x, (rank - 1) % size)
    sent.wait()
    assert x.item() == (rank - 1) % size
    assert ours_on_the_cpu._get_sequence_number_for_group() == 14
    with pytest.raises(ArgumentError, match=r"tensor: expected a dense tensor; given a torch\.sparse_coo tensor"):
        dist.all_reduce(torch.ones(4).to_sparse())
    future = dist.all_reduce(x, async_op=True).get_future()
    assert future.then(lambda f: f.value()[0][0].item()).wait() == sum(range(size))


@needs_one
def test_compiled(ours_on_the_cpu: DeviceBackend) -> None:
    @torch.compile(backend="aot_eager")
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        dist.broadcast(y, 0)
        return y * 2

    assert program(torch.tensor([float(dist.get_rank())])).item() == 2.0


@needs_one
@pytest.mark.parametrize(("backend", "ours"), [("cpu:mpicoll,cuda:gloo", "cpu"), ("cpu:gloo,cuda:mpicoll", "cuda")])
def test_each_device_has_its_backend(backend: str, ours: str) -> None:
    """In the default group and in one that is made of it. mpicoll.torch's own functions take neither, but a group of
    mpicoll alone that is made of it."""
    dist.init_process_group(backend, "mpi://")
    for group in (dist.group.WORLD, dist.new_group()):
        made: Any = group
        for device in ("cpu", "cuda"):
            assert isinstance(made._get_backend(torch.device(device)), DeviceBackend) == (device == ours)
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        assert x.item() == dist.get_world_size()
        assert made._get_backend(torch.device(ours))._get_sequence_number_for_group() == (ours == "cpu")
        with pytest.raises(ArgumentError, match="group: expected a group of mpicoll"):
            mpicoll.torch.all_reduce(torch.ones(1), group=group)
    with pytest.raises(StateError, match="there is no default group"):
        mpicoll.torch.all_reduce(torch.ones(1))
    alone = dist.new_group(backend="mpicoll")
    assert isinstance(alone, mpicoll.torch.ProcessGroup)
    mpicoll.torch.all_reduce(x, group=alone)
    assert x.item() == dist.get_world_size() ** 2
    dist.barrier()  # a rank whose gloo still connects would fail if another one's were gone


@needs_one
@pytest.mark.mpi(min_size=2)
def test_monitored_barrier_without_a_timeout(ours_on_the_cpu: DeviceBackend) -> None:
    """The group's timeout counts. The last rank does not come to the first barrier, and all come to the second."""
    rank, size = dist.get_rank(), dist.get_world_size()
    world: Any = dist.group.WORLD
    ours_on_the_cpu.set_timeout(timedelta(seconds=1))
    dist.barrier()  # so that those that come are there in time
    if rank < size - 1:
        with pytest.raises(RuntimeError, match=rf"after 0:00:01, these ranks did not come: {size - 1}"):
            world.monitored_barrier()
    dist.barrier()
    ours_on_the_cpu.set_timeout(timedelta(minutes=1))
    world.monitored_barrier()


@needs_one
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("overlap", ["0", "1"])
def test_ddp_with_and_without_overlap(overlap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variable decides whether the backward pass waits, as in a whole group."""
    monkeypatch.setenv("MPICOLL_DDP_OVERLAP", overlap)
    monkeypatch.setattr("mpicoll.torch.ddp.MOMENT", 60.0)  # so that whoever waits, waits to the end
    dist.init_process_group("cpu:mpicoll,cuda:gloo", "mpi://")
    assert backward_waits(dist.get_rank(), overlap == "0") == (overlap == "0")


@needs_one
def test_programs(ours_on_the_cpu: DeviceBackend) -> None:
    """DDP, FSDP2 and functional collectives."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = DistributedDataParallel(torch.nn.Linear(4, 3))
    whole(torch.full((2, 4), float(rank))).sum().backward()
    assert torch.equal(whole.module.weight.grad, torch.full((3, 4), float(size - 1)))
    sharded: Any = fully_shard(torch.nn.Linear(4, 3 * size), mesh=init_device_mesh("cpu", (size,)))
    sharded(torch.full((2, 4), float(rank))).sum().backward()
    assert torch.equal(sharded.weight.grad.full_tensor(), torch.full((3 * size, 4), float(size - 1)))
    assert functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD).item() == size


@pytest.mark.parametrize("backend", ["mpicoll", pytest.param("cpu:mpicoll,cuda:gloo", marks=needs_one)])
def test_modes_for_debugging(backend: str) -> None:
    """They see functional collectives, and where torch's own group stands over the backend, all calls."""
    dist.init_process_group(backend, "mpi://")
    of_torch = backend != "mpicoll"
    x = torch.ones(1)
    with CommDebugMode() as mode:
        functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
        dist.all_reduce(x)
    assert mode.get_total_counts() == 1 + of_torch
    with FakeTensorMode(), nullcontext() if of_torch else pytest.raises(ArgumentError, match="given a FakeTensor"):
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
