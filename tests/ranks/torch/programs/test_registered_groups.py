"""torch.distributed's groups of our backend: made, split, mixed with gloo's, destroyed and made again."""

from __future__ import annotations

import os
import socket
import time
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

import mpicoll.torch
from mpicoll.errors import ArgumentError, DeviceError, LaunchError, StateError
from mpicoll.torch.private import BACKENDS_IN_PYTHON
from mpicoll.torch.registered_group import DeviceBackend, make


def works(group: dist.ProcessGroup | None = None) -> None:
    """The group carries out a collective, and knows its ranks."""
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x, group=group)
    assert x.item() == sum(dist.get_process_group_ranks(group))


@pytest.fixture
def without_group() -> None:
    dist.destroy_process_group()


def test_ours_is_torchs() -> None:
    assert dist.get_backend() == "mpicoll"
    assert dist.group.WORLD is cast(Any, mpicoll.torch.group.WORLD)
    assert mpicoll.torch.get_rank() == dist.get_rank()
    assert mpicoll.torch.get_node_local_rank() == dist.get_node_local_rank()
    works()
    assert os.environ["MASTER_ADDR"]  # where torch's tools find the store
    assert 0 < int(os.environ["MASTER_PORT"]) < 1 << 16


def test_store_of_ones_own(without_group: None) -> None:
    world = MPI.COMM_WORLD
    store = dist.TCPStore("127.0.0.1", 0, world.size, True, wait_for_workers=False) if world.rank == 0 else None
    port = world.bcast(store.port if store else None)
    store = store or dist.TCPStore("127.0.0.1", port, world.size, False)
    dist.init_process_group("mpicoll", store=store, rank=world.rank, world_size=world.size)
    works()
    dist.group.WORLD.get_group_store().set(f"key {world.rank}", "value")
    dist.barrier()
    assert dist.group.WORLD.get_group_store().get(f"key {world.size - 1}") == b"value"
    dist.barrier()
    dist.destroy_process_group()


def test_rendezvous(rank: int, size: int) -> None:
    """A program may meet once more beside the group. It gets a store that all ranks share."""
    store, given_rank, given_size = next(dist.rendezvous("mpi://"))
    assert (given_rank, given_size) == (rank, size)
    store.set(f"of {rank}", str(rank))
    assert [store.get(f"of {r}") for r in range(size)] == [str(r).encode() for r in range(size)]
    dist.barrier()


@pytest.mark.parametrize("argument", ["rank", "world_size"])
@pytest.mark.parametrize("by_store", [False, True])
def test_contradictions(argument: str, by_store: bool, without_group: None) -> None:
    """The given rank or world size is not MPI's: every rank raises, however it was given."""
    said: dict[str, Any] = {"rank": MPI.COMM_WORLD.rank, "world_size": MPI.COMM_WORLD.size}
    said[argument] += 1
    how: dict[str, Any] = {"store": dist.HashStore()} if by_store else {"init_method": "mpi://"}
    with pytest.raises(LaunchError, match=rf"{argument}={said[argument]} .* MPI says"):
        dist.init_process_group("mpicoll", **how, **said)
    assert not dist.is_initialized()


def test_a_rank_that_is_named_twice() -> None:
    """Before torch 2.13, torch itself lets it through."""
    options = SimpleNamespace(global_ranks_in_group=[0, 0], group_rank=0, group_size=2)
    with pytest.raises(ArgumentError, match=r"new_group: ranks: expected different ranks; given \[0, 0\]"):
        make(options)


def test_after_destroy(without_group: None) -> None:
    dist.init_process_group("mpicoll")
    world, part = dist.group.WORLD, dist.new_group()
    dist.destroy_process_group(part)
    with pytest.raises(ValueError, match="not initialized") as raised:  # by torch, as it looks for more to say
        dist.all_reduce(torch.ones(1), group=part)
    assert isinstance(raised.value.__context__, StateError)
    works()
    dist.destroy_process_group()
    with pytest.raises(StateError, match="destroyed"):
        world.allreduce([torch.ones(1)])
    with pytest.raises(ValueError, match="not been initialized"):
        dist.all_reduce(torch.ones(1))
    world.shutdown()  # does nothing
    world.abort()


def test_set_timeout() -> None:
    group = dist.new_group(timeout=timedelta(seconds=9))
    assert group.timeout == timedelta(seconds=9)
    group.set_timeout(timedelta(seconds=60))
    assert group.timeout == timedelta(seconds=60)
    group.monitored_barrier()


def test_aborted(size: int) -> None:
    part = dist.new_group()
    pending = dist.irecv(torch.zeros(1), group=part, group_src=dist.get_rank(part))
    part.abort()
    with pytest.raises(StateError, match="aborted"):
        pending.wait()
    with pytest.raises(StateError, match="aborted"):
        dist.all_reduce(torch.ones(1), group=part)
    works()


# -- a group's methods ------------------------------------------------------------------------------------------------


def test_what_torch_passes_to_a_groups_methods() -> None:
    world: Any = dist.group.WORLD
    x = torch.ones(1)
    world.allreduce(x).wait()  # as DistributedDataParallel does in join()
    assert x.item() == world.size()
    for refused in (lambda: world.broadcast(x, 0), lambda: world.allreduce([x], dist.ReduceOp.MAX)):
        with pytest.raises(ArgumentError, match=r"opts: expected torch's options, such as .*; given "):
            refused()
    with pytest.raises(ArgumentError, match="all_reduce: tensors: expected one tensor; given 'x'"):
        world.allreduce("x")


# -- other groups -----------------------------------------------------------------------------------------------------


def test_what_torch_makes_of_groups(rank: int, size: int) -> None:
    before = dist.get_pg_count()
    mine, made = dist.new_subgroups(1)
    assert dist.get_pg_count() - before == len(made) == size
    assert dist.get_process_group_ranks(mine) == [rank]
    halves = [half for half in (list(range(size // 2)), list(range(size // 2, size))) if half]
    mine, made = dist.new_subgroups_by_enumeration(halves)
    assert len(made) == len(halves)
    assert rank in dist.get_process_group_ranks(mine)
    works(mine)
    works(dist.new_group(dist.get_process_group_ranks(mine), use_local_synchronization=True))
    assert dist.get_backend_config(mine) == "cpu:mpicoll,cuda:mpicoll"
    with pytest.raises((RuntimeError, ValueError, TypeError), match=r"[sS]hrink"):
        dist.shrink_group([0])


def test_functions_that_only_call_a_barrier(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is in the debugger, and the others wait."""
    stops: list[bool] = []
    debugger = SimpleNamespace(message=str, set_trace=lambda: stops.append(True))
    monkeypatch.setattr(dist, "_make_distributed_pdb", lambda: debugger)
    with dist.record_comm("step 1") if hasattr(dist, "record_comm") else nullcontext():  # torch 2.11 has not
        dist.breakpoint()
    assert stops == [True] * (rank == 0)
    with nullcontext() if BACKENDS_IN_PYTHON else pytest.raises(ValueError, match="only implemented for GLOO"):
        dist.monitored_barrier()


def test_gloo_of_the_same_ranks(rank: int, size: int) -> None:
    """gloo's ranks meet through the store that mpi:// made."""
    other = dist.new_group(backend="gloo")
    assert dist.get_backend(other) == "gloo"
    works(other)
    works()
    dist.destroy_process_group(other)


def test_default_of_gloo(without_group: None) -> None:
    """mpi:// serves any backend. The default group is gloo's, and a group of mpicoll's works beside it."""
    dist.init_process_group("gloo", init_method="mpi://")
    assert dist.get_backend() == "gloo"
    works()
    ours = dist.new_group(list(range(dist.get_world_size()))[::-1], backend="mpicoll")
    assert dist.get_backend(ours) == "mpicoll"
    works(ours)
    ours.monitored_barrier(timedelta(seconds=30))
    dist.destroy_process_group()


def test_rounds_on_one_port(rank: int, size: int, without_group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round has a new store on the same port. Rank 0 comes late to the end of a round, and keeps the group."""
    kept: list[Any] = []
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = mpicoll.Communicator().bcast_object(found.getsockname()[1])
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port), ("RANK", rank), ("WORLD_SIZE", size)):
        monkeypatch.setenv(name, str(value))
    for _ in range(3):
        dist.init_process_group("mpicoll", init_method="env://", timeout=timedelta(seconds=30))
        works()
        if rank == 0:
            kept.append(dist.group.WORLD)
            assert not kept[-1].get_group_store().check(["round"])
            kept[-1].get_group_store().set("round", "")
            time.sleep(0.1)
        dist.destroy_process_group()


@pytest.mark.parametrize(("given", "seconds"), [(None, 7200), (60, 60), (9999, 7200)])
def test_the_environment_s_timeout(
    without_group: None, given: float | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPICOLL_TIMEOUT", "7200")
    dist.init_process_group("mpicoll", timeout=None if given is None else timedelta(seconds=given))
    world: Any = dist.group.WORLD
    assert world.comm.timeout == seconds
    dist.destroy_process_group()


# -- splitting --------------------------------------------------------------------------------------------------------


def test_split_group(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test makes torch's function take the CPU for an accelerator."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cpu"))
    dist.group.WORLD.bound_device_id = torch.device("cpu", 0)
    halves = [half for half in (list(range(size // 2)), list(range(size // 2, size))) if half]
    mine = next(half for half in halves if rank in half)
    part = dist.split_group(split_ranks=halves, group_desc="a half")
    assert (dist.get_process_group_ranks(part), part.group_desc) == (mine, "a half")
    works(part)
    inner = dist.split_group(part, [[0]])
    assert (inner is not None) == (rank == mine[0])
    if inner is not None:
        works(inner)
    dist.destroy_process_group()


# -- what cannot be ---------------------------------------------------------------------------------------------------


def test_device_that_no_group_serves() -> None:
    with pytest.raises(DeviceError, match=r"all_reduce: tensor: .*meta"):
        dist.all_reduce(torch.ones(1, device="meta"))
    works()


c10d: Any = torch._C._distributed_c10d


def test_torch_is_told_what_the_group_can() -> None:
    """torch's own answer is an error where a class has none."""
    group: Any = dist.group.WORLD
    of_device = [(DeviceBackend(group), c10d.Backend)] if BACKENDS_IN_PYTHON else []
    for made, kind in [(group, c10d.ProcessGroup), *of_device]:
        for name in [name for name in dir(kind) if "supports_" in name]:
            answer = getattr(made, name)
            assert (answer(torch.device("cpu")) if name == "supports_tensor_alloc" else answer) in (True, False), name


def test_hooks_around_operations_are_refused() -> None:
    world: Any = dist.group.WORLD
    with pytest.raises(StateError, match="register_pre_hook"):
        world.register_pre_hook(1, print)
    works()
