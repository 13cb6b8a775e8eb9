"""Tensors in memory that the node's ranks share: those that the program asks for, and those that torch makes."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch
from mpicoll.calls.choose import SHARED
from mpicoll.errors import ArgumentError
from mpicoll.machine import blocks
from mpicoll.torch import memory
from mpicoll.torch.ddp import Buckets
from mpicoll.torch.registered_group import RegisteredGroup
from tests.sharing import LONG, NEEDED

pytestmark = NEEDED


@pytest.fixture
def group() -> Iterator[Any]:
    made = dist.new_group()
    assert isinstance(made, RegisteredGroup)
    yield made
    dist.destroy_process_group(made)


def is_shared(tensor: torch.Tensor) -> bool:
    return blocks.own_at(tensor.data_ptr(), tensor.nbytes) is not None


def all_reduced(tensor: torch.Tensor, group: Any, where_it_lies: bool = True) -> None:
    """The tensor is the sum of all ranks', each of which gave its rank + 1 in all elements."""
    tensor.fill_(group.rank() + 1)
    dist.all_reduce(tensor, group=group)
    assert (tensor == sum(range(1, group.size() + 1))).all()
    assert (group.comm.last_route == SHARED) == where_it_lies


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.uint8])
def test_empty(group: Any, dtype: torch.dtype) -> None:
    """It is on the CPU, whatever the default device is."""
    for made in (mpicoll.torch.empty(2, LONG, dtype=dtype), mpicoll.torch.empty((2, LONG), dtype=dtype, group=group)):
        assert (made.shape, made.dtype, made.is_contiguous()) == ((2, LONG), dtype, True)
        assert is_shared(made)
        all_reduced(made, group)
    with torch.device("meta"):
        for shape in ((), (0, 5), (3,), (LONG,)):
            made = mpicoll.torch.empty(shape, dtype=dtype)
            assert (made.shape, made.dtype, made.device.type) == (shape, dtype, "cpu")
            assert is_shared(made) == (shape == (LONG,))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mpicoll.torch.empty(cast(Any, "x")), "empty: size and dtype: expected those that torch.empty takes"),
        (lambda: mpicoll.torch.empty(-1), "empty: size and dtype: expected those that torch.empty takes"),
        (lambda: mpicoll.torch.empty(cast(Any, 2.5)), "empty: size and dtype: expected those that torch.empty takes"),
        (lambda: mpicoll.torch.share_(cast(Any, np.zeros(4))), "share_: x: expected a tensor or a module; given"),
        (lambda: Buckets(), "MPICOLL_SHARE: expected off, or nothing; given '0'"),
    ],
)
def test_wrong_arguments(call: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_SHARE", "0")
    with pytest.raises(ArgumentError, match=words):
        call()


def test_fsdp_asks_the_group_for_memory() -> None:
    """Of a module whose shards may be in shared memory, too."""
    model = nn.Sequential(nn.Linear(600, 800), nn.ReLU(), nn.Linear(800, 400))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh).set_allocate_memory_from_process_group_for_comm(True)
    mpicoll.torch.share_(model)
    assert is_shared(cast(Any, model[0].weight).to_local())
    model(torch.randn(8, 600)).square().mean().backward()
    assert cast(RegisteredGroup, mesh.get_group()).comm.last_route == SHARED


def test_share_moves_all_that_looks_at_the_memory(group: Any) -> None:
    x = torch.arange(2 * LONG, dtype=torch.int32)
    row, before = x.view(2, LONG)[1], x.clone()
    assert mpicoll.torch.share_(x) is x
    assert torch.equal(x, before)
    assert is_shared(row)
    all_reduced(row, group)
    assert (x[LONG:] == row).all()
    assert (x[:LONG] == before[:LONG]).all()
    mpicoll.torch.share_(row)  # for the second time
    all_reduced(x, group)


def test_share_of_a_module(group: Any) -> None:
    module = nn.Sequential(nn.Linear(300, 500), nn.BatchNorm1d(500))
    module.register_buffer("table", torch.ones(LONG))
    expected = {name: value.clone() for name, value in module.state_dict().items()}
    assert mpicoll.torch.share_(module, group) is module
    for name, value in module.state_dict().items():
        assert torch.equal(value, expected[name])
        assert is_shared(value) == (value.nbytes >= blocks.LEAST), name
    for parameter in module.parameters():
        dist.all_reduce(parameter.data, group=group)


def test_share_of_a_tensor_that_torch_shares(group: Any) -> None:
    x = torch.zeros(LONG).share_memory_()
    for _ in range(3):
        all_reduced(x, group, where_it_lies=False)
    if group.rank() == 0:  # and the others do not
        mpicoll.torch.share_(x)
    all_reduced(x, group, where_it_lies=False)
    mpicoll.torch.share_(x)
    routes = []
    for _ in range(4):  # ranks do not look at once where such calls had ordinary tensors
        dist.all_reduce(x, group=group)
        routes.append(group.comm.last_route)
    assert routes[-1] == SHARED


def test_share_of_what_cannot_be_shared(tmp_path: Path) -> None:
    lazy = mpicoll.torch.share_(nn.LazyLinear(5))
    assert lazy(torch.ones(2, 3)).shape == (2, 5)
    file = tmp_path / f"rank{dist.get_rank()}"
    mapped_file = torch.from_file(str(file), shared=True, size=LONG)  # torch takes it for shared
    with pytest.warns(UserWarning, match="0.5 MiB stay in ordinary memory"):
        mpicoll.torch.share_(mapped_file)


@pytest.mark.slow
def test_tensors_that_are_gone_do_not_count(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    there = sum(not own.lasts and own.is_there() for own in blocks.known)
    monkeypatch.setattr(blocks, "MOST", there + 3)
    for _ in range(3):
        kept = [mpicoll.torch.share_(torch.zeros(LONG)) for _ in range(3)]
        assert all(map(is_shared, kept))
        beyond = torch.zeros(LONG)
        with pytest.warns(UserWarning, match=f"a process may have {there + 3} such tensors"):
            mpicoll.torch.share_(beyond)
        assert not beyond.is_shared()
        del kept
        gc.collect()
    all_reduced(mpicoll.torch.share_(beyond), group)


def test_no_room(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_room", lambda: 5 << 20)
    x = torch.zeros(2 << 20)
    with pytest.warns(UserWarning, match=r"8\.0 MiB stay in ordinary memory: /dev/shm has 5 MiB left"):
        mpicoll.torch.share_(x)
    assert not x.is_shared()
    all_reduced(x, group, where_it_lies=False)


def mapped() -> list[str]:
    """Files of torch's that this process has mapped: its own, and those of other ranks."""
    gc.collect()
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/torch_" in line]


def put(address: int, count: int) -> torch.Tensor:
    """A tensor in ordinary memory at this address, where nothing is."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    fixed_noreplace, nbytes = 0x100000, 4 * count
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed_noreplace
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    assert libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) == address
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


@pytest.mark.slow
def test_memory_that_is_gone(group: Any) -> None:
    """Other ranks let go of it, and other memory may be at its address then, which may be ordinary."""
    before, files = len(mapped()), len(os.listdir("/proc/self/fd"))
    for ordinary in (False, False, True):
        x = mpicoll.torch.share_(torch.zeros(LONG))
        all_reduced(x, group)
        address = x.data_ptr()
        dist.barrier(group)
        assert len(mapped()) == before + group.size()
        del x
        assert len(mapped()) == before
        assert len(os.listdir("/proc/self/fd")) <= files
        assert blocks.own_at(address, 1) is None
        if ordinary:
            all_reduced(put(address, LONG), group, where_it_lies=False)
        dist.barrier(group)


def test_memory_that_moves_again(group: Any) -> None:
    """torch does that where a program shares tensors by names. The tensor is there, and other memory at its address."""
    x = mpicoll.torch.share_(torch.zeros(LONG))
    all_reduced(x, group)
    address = x.data_ptr()
    x.untyped_storage()._share_filename_cpu_()
    assert x.data_ptr() != address
    assert blocks.own_at(address, 1) is None
    all_reduced(put(address, LONG), group, where_it_lies=False)
    all_reduced(x, group, where_it_lies=False)


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("switch", ["", "off"])
def test_buckets_of_ddp(switch: str, view: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(300, 800), nn.ReLU(), nn.Linear(800, 400)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    monkeypatch.setenv("MPICOLL_SHARE", "off")
    plain = dist.new_group()
    monkeypatch.setenv("MPICOLL_SHARE", switch)
    group = dist.new_group()
    routes = []
    ddps = [
        DistributedDataParallel(m, process_group=g, bucket_cap_mb=1, gradient_as_bucket_view=view)
        for m, g in zip(models, (plain, group), strict=True)
    ]
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in models]
    for step in range(6):
        torch.manual_seed(100 * step + dist.get_rank())
        batch = torch.randn(8, 300)
        for ddp, optimizer in zip(ddps, optimizers, strict=True):
            optimizer.zero_grad(set_to_none=not view)
            ddp(batch).square().mean().backward()
            optimizer.step()
        routes.append(cast(RegisteredGroup, group).comm.last_route)
    assert (routes[-1] == SHARED) == (not switch)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
