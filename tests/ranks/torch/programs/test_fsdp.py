"""FSDP2, DTensor and tensor parallelism: sharded parameters are those of the unsharded model."""

from __future__ import annotations

import copy
from functools import partial
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import mpicoll
from mpicoll.errors import ArgumentError
from tests.ranks.torch.programs.training import (
    STEPS,
    WIDTH,
    loss_of,
    mlp,
    part,
    sgd,
    sharded,
    tokens,
    train,
    transformer,
    vectors,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.full_tensor().detach() for name, p in model.named_parameters() if isinstance(p, DTensor)}


def assert_same(model: nn.Module, expected: nn.Module, rtol: float, atol: float) -> None:
    found = whole(model)
    assert found.keys() == dict(expected.named_parameters()).keys()
    for name, p in expected.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("way", ["plain", "memory of the group", "hybrid"])
def test_fully_shard(way: str, rank: int, size: int) -> None:
    """Hybrid: sharded within each row of a two-dimensional mesh, replicated across them."""
    alone = train(transformer(), map(tokens, range(STEPS)))
    rows = 1 if way != "hybrid" or size % 2 else 2
    mesh = init_device_mesh("cpu", (rows, size // rows), mesh_dim_names=("replicate", "shard"))
    model = sharded(transformer(), mesh if way == "hybrid" else mesh["shard"])
    if way == "memory of the group":
        cast(FSDPModule, model).set_allocate_memory_from_process_group_for_comm(True)
    mine = sum(cast(DTensor, p).to_local().numel() for p in model.parameters())
    assert mine < sum(p.numel() for p in alone.parameters()) or size == rows
    train(model, (part(tokens(step), rank, size) for step in range(STEPS)))
    assert_same(model, alone, 1e-4, 1e-5)


@pytest.mark.parametrize("reduced_in", [torch.float32, torch.bfloat16], ids=str)
def test_mixed_precision(reduced_in: torch.dtype, rank: int, size: int) -> None:
    """Parameters travel and compute in bf16, and the optimizer's copy is fp32."""
    alone = train(transformer(), map(tokens, range(STEPS)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced_in)
    model = sharded(transformer(), init_device_mesh("cpu", (size,)), mp_policy=policy, reshard_after_forward=False)
    train(model, (part(tokens(step), rank, size) for step in range(STEPS)))
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert_same(model, alone, 5e-2, 2e-2)


def test_clipping_and_accumulation(rank: int, size: int) -> None:
    """The norm is that of all shards. The gradients of two micro-batches are reduced once."""
    one, model = transformer(), sharded(transformer(), init_device_mesh("cpu", (size,)))
    assert isinstance(model, FSDPModule)
    for m, r, n in ((one, 0, 1), (model, rank, size)):
        optimizer = sgd(m.parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            for k in range(2):
                if isinstance(m, FSDPModule):
                    m.set_requires_gradient_sync(k == 1)
                loss_of(m, part(tokens(2 * step + k), r, n)).backward()
            torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            optimizer.step()
    assert_same(model, one, 1e-4, 1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_fsdp1(rank: int, size: int) -> None:
    """The older FullyShardedDataParallel."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    alone = train(transformer(), map(tokens, range(STEPS)))
    model = FSDP(transformer(), device_id=torch.device("cpu"), use_orig_params=True)
    train(model, (part(tokens(step), rank, size) for step in range(STEPS)))
    with FSDP.summon_full_params(model):
        for (name, p), (_, q) in zip(model.named_parameters(), alone.named_parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5, msg=partial("{}: {}".format, name))


# -- DTensor and tensor parallelism on one- and two-dimensional meshes --

PLACEMENTS = [Replicate(), Shard(0), Shard(1), Partial()]


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
    assert mesh.get_rank() == rank == rows.get_local_rank() * columns.size() + columns.get_local_rank()
    assert mesh.get_all_groups() == [rows.get_group(), columns.get_group()]
    for part_of_it in (rows, columns, dist.DeviceMesh.from_group(dist.new_group(), "cpu")):
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
        assert_same(train(model, map(vectors, range(STEPS))), alone, 1e-4, 1e-5)
        model = parallel_mlp(mesh["tensor"])
    fully_shard(model, mesh=mesh["data"])
    data = mesh["data"]
    train(model, (part(vectors(step), data.get_local_rank(), data.size()) for step in range(STEPS)))
    assert_same(model, alone, 1e-4, 1e-5)


def test_what_stands_for_memory_elsewhere_is_refused_by_name(size: int) -> None:
    comm = mpicoll.Communicator()
    x = distribute_tensor(matrix(), init_device_mesh("cpu", (size,)), [Replicate()])
    with pytest.raises(ArgumentError, match=r"allreduce: x: .*of a DTensor: x.to_local\(\)\); given a DTensor"):
        comm.allreduce(x)
    with FakeTensorMode():
        fake = torch.ones(3)
        with pytest.raises(ArgumentError, match=r"allreduce: x: .* given a FakeTensor, which has none"):
            comm.allreduce(fake)
    comm.free()
