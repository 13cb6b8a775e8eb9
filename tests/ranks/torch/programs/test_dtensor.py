"""DTensor and tensor parallelism on one- and two-dimensional meshes."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import mpicoll
from mpicoll.errors import ArgumentError
from tests.ranks.torch.programs.training import STEPS, WIDTH, mlp, part, train, vectors

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")

PLACEMENTS = [Replicate(), Shard(0), Shard(1), Partial()]


def full(x: torch.Tensor) -> torch.Tensor:
    """All of a tensor that the ranks have parts of."""
    return cast(DTensor, x).full_tensor()


def matrix(rows: int = 7, columns: int = 10) -> torch.Tensor:
    """A tensor that is the same on all ranks. Its parts are not equal and not empty."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("to", [Replicate(), Shard(0), Shard(1)], ids=str)
@pytest.mark.parametrize("of", PLACEMENTS, ids=str)
def test_redistribute(of: Placement, to: Placement, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    x = matrix()
    given = DTensor.from_local(x / size, mesh, [of]) if of.is_partial() else distribute_tensor(x, mesh, [of])
    moved = given.redistribute(placements=[to])
    assert moved.placements == (to,)
    torch.testing.assert_close(moved.full_tensor(), x)


def parallel_mlp(mesh: dist.DeviceMesh) -> nn.Module:
    return parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: full(p).detach() for name, p in model.named_parameters()}


def assert_same(model: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(
        whole(model), {name: p.detach() for name, p in expected.named_parameters()}, rtol=1e-4, atol=1e-5
    )


def test_sequence_parallel(size: int) -> None:
    """The norm works on a part of the sequence; the layers around it gather and scatter it."""
    torch.manual_seed(6)
    one = nn.Sequential(nn.LayerNorm(WIDTH), *mlp())
    model = copy.deepcopy(one)
    mesh = init_device_mesh("cpu", (size,))
    plan = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "3": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, mesh, plan)
    x = torch.randn(2, 12, WIDTH)
    expected = one(x)
    found = model(distribute_tensor(x, mesh, [Shard(1)]))
    gathered = DTensor.from_local(found, mesh, [Shard(1)]).full_tensor()
    torch.testing.assert_close(gathered, expected)


def two_dimensional(size: int) -> dist.DeviceMesh:
    shape = (size // 2, 2) if size % 2 == 0 else (size, 1)
    return init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))


def test_mesh(rank: int, size: int) -> None:
    mesh = two_dimensional(size)
    rows, columns = mesh["data"], mesh["tensor"]
    assert mesh.size() == rows.size() * columns.size() == size
    assert tuple(mesh.get_coordinate()) == (rows.get_local_rank(), columns.get_local_rank())
    assert rank == rows.get_local_rank() * columns.size() + columns.get_local_rank()
    for part_of_it in (rows, columns):
        g = part_of_it.get_group()
        assert dist.get_backend(g) == "mpicoll"
        x = torch.tensor([rank])
        dist.all_reduce(x, group=g)
        assert x.item() == sum(dist.get_process_group_ranks(g))
    flat = mesh._flatten("all")
    x = torch.ones(1)
    dist.all_reduce(x, group=flat.get_group())
    assert x.item() == size


def test_fsdp_and_tensor_parallel(size: int) -> None:
    """Parameters sharded in one dimension of a mesh, and in both."""
    mesh = two_dimensional(size)
    alone = train(mlp(), map(vectors, range(STEPS)))
    model = parallel_mlp(mesh["tensor"])
    if mesh["data"].size() == 1:
        assert_same(train(model, map(vectors, range(STEPS))), alone)
        model = parallel_mlp(mesh["tensor"])
    fully_shard(model, mesh=mesh["data"])
    data = mesh["data"]
    train(model, (part(vectors(step), data.get_local_rank(), data.size()) for step in range(STEPS)))
    assert_same(model, alone)


def test_what_stands_for_memory_elsewhere_is_refused_by_name(size: int) -> None:
    comm = mpicoll.Communicator()
    x = distribute_tensor(matrix(), init_device_mesh("cpu", (size,)), [Replicate()])
    with pytest.raises(ArgumentError, match=r"allreduce: x: .* given a DTensor, .* pass x.to_local\(\)"):
        comm.allreduce(x)
    with FakeTensorMode():
        fake = torch.ones(3)
        with pytest.raises(ArgumentError, match=r"allreduce: x: .* given a FakeTensor, which has none"):
            comm.allreduce(fake)
    comm.free()
