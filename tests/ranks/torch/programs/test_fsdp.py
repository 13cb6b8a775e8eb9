"""FSDP2: sharded parameters are those of the unsharded model."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from tests.ranks.torch.programs.training import STEPS, loss_of, part, sgd, tokens, train, transformer

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


def sharded(mesh: dist.DeviceMesh, **options: Any) -> nn.Module:
    """The transformer, with an FSDP unit for each of its layers."""
    model = transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


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
    model = sharded(mesh if way == "hybrid" else mesh["shard"])
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
    model = sharded(init_device_mesh("cpu", (size,)), mp_policy=policy, reshard_after_forward=False)
    train(model, (part(tokens(step), rank, size) for step in range(STEPS)))
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert_same(model, alone, 5e-2, 2e-2)


def test_clipping_and_accumulation(rank: int, size: int) -> None:
    """The norm is that of all shards. The gradients of two micro-batches are reduced once."""
    one, model = transformer(), sharded(init_device_mesh("cpu", (size,)))
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
