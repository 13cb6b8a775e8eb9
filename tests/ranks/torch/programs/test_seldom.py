"""Functions of torch.distributed that few programs call themselves."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.nn import functional as torchs

from mpicoll.errors import ArgumentError
from mpicoll.torch import nn
from mpicoll.torch.private import BACKENDS_IN_PYTHON
from tests.ranks.torch.cases import Group
from tests.ranks.torch.programs.training import everybodys, refused_without_backends_in_python, row, total
from tests.ranks.torch.test_nn import CASES, Case, inputs, weights

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch has newer names for some

NEWER = hasattr(dist, "all_gather_single")
"""Whether torch has its newer names, since 2.13."""


def needs(where: Any, name: str) -> pytest.MarkDecorator:
    """Marks a test of a function that torch 2.11 does not have."""
    return pytest.mark.skipif(not hasattr(where, name), reason=f"torch {torch.__version__} has no {name}")


def test_a_port_without_an_address(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate sets MASTER_PORT alone, and passes rank and size."""
    dist.destroy_process_group()
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(ValueError, match="MASTER_ADDR expected") as caught:
        dist.init_process_group("gloo", rank=rank, world_size=size)
    assert any("init_process_group('mpicoll') before" in note for note in caught.value.__notes__)


# -- of groups --------------------------------------------------------------------------------------------------------


def test_what_torch_knows_of_groups(rank: int, size: int) -> None:
    assert dist.get_backend_config() == "cpu:mpicoll,cuda:mpicoll"
    before = dist.get_pg_count()
    groups = dist.new_group(list(range(size))), dist.new_group([0])
    assert dist.get_pg_count() == before + 2
    assert dist.get_backend_config(groups[0]) == "cpu:mpicoll,cuda:mpicoll"


def test_subgroups_by_enumeration(rank: int, size: int) -> None:
    """There is a group for each list. A rank gets the group that it is in, and a list of all."""
    halves = [list(range(size // 2)), list(range(size // 2, size))][size < 2 :]
    mine, made = dist.new_subgroups_by_enumeration(halves)
    ranks = next(half for half in halves if rank in half)
    assert len(made) == len(halves)
    assert dist.get_process_group_ranks(mine) == ranks
    x = row(rank)
    dist.all_reduce(x, group=mine)
    assert torch.equal(x, torch.stack([row(r) for r in ranks]).sum(0))


def test_subgroups_of_equal_size(rank: int, size: int) -> None:
    mine, made = dist.new_subgroups(1)
    assert len(made) == size
    assert dist.get_process_group_ranks(mine) == [rank]


def test_a_group_cannot_be_shrunk(size: int) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError), match=r"[sS]hrink"):
        dist.shrink_group([0])
    dist.barrier()


def test_monitored_barrier_by_torchs_function() -> None:
    """Before torch 2.14, torch's function takes groups of gloo's only. The group's method works in any version."""
    with nullcontext() if BACKENDS_IN_PYTHON else pytest.raises(ValueError, match="only implemented for GLOO"):
        dist.monitored_barrier()
    world: Any = dist.group.WORLD
    world.monitored_barrier()


def test_rendezvous(rank: int, size: int) -> None:
    """A program may meet once more beside the group. It gets a store that all ranks share."""
    store, given_rank, given_size = next(dist.rendezvous("mpi://"))
    assert (given_rank, given_size) == (rank, size)
    store.set(f"of {rank}", str(rank))
    assert [store.get(f"of {r}") for r in range(size)] == [str(r).encode() for r in range(size)]
    dist.barrier()


@needs(dist, "record_comm")
def test_a_name_for_the_profiler(size: int) -> None:
    with dist.record_comm("step 1"):
        dist.barrier()


def test_breakpoint(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is in the debugger, and the others wait in a barrier."""

    class Debugger:
        stops = 0

        def message(self, text: str) -> None:
            assert "breakpoint(rank=0)" in text

        def set_trace(self) -> None:
            Debugger.stops += 1

    monkeypatch.setattr(dist, "_make_distributed_pdb", Debugger)
    dist.breakpoint()
    assert Debugger.stops == (rank == 0)


# -- several tensors in one call --------------------------------------------------------------------------------------


@pytest.mark.parametrize("async_op", [False, True])
def test_all_reduce_coalesced(rank: int, size: int, async_op: bool) -> None:
    """And all_gather_coalesced."""
    xs, outs = [row(rank), row(rank)[:2] * 2], [[torch.empty(3), torch.empty(2)] for _ in range(size)]
    gathered = dist.all_gather_coalesced(outs, [x.clone() for x in xs], async_op=async_op)
    reduced = dist.all_reduce_coalesced(xs, async_op=async_op)
    if async_op:
        reduced.wait()
        gathered.wait()
    assert torch.equal(torch.cat(xs), torch.cat([total(size), total(size)[:2] * 2]))
    for r, found in enumerate(outs):
        assert torch.equal(torch.cat(found), torch.cat([row(r), row(r)[:2] * 2]))


@needs(dist, "all_gather_single")
def test_newer_names(rank: int, size: int) -> None:
    whole, block = torch.empty(size, 3), torch.empty(1, 3)
    dist.all_gather_single(whole, row(rank)[None])
    dist.reduce_scatter_single(block, whole)
    assert torch.equal(whole, everybodys(size))
    assert torch.equal(block[0], size * row(rank))


@needs(dist, "gather_single")
def test_gather_to_one_tensor(rank: int, size: int) -> None:
    torchs: Any = dist  # its stubs may be of an older torch
    last = size - 1
    whole = torch.empty(size, 3) if rank == last else None
    work = torchs.gather_single(row(rank), whole, dst=last, async_op=True)
    work.wait()
    if whole is not None:
        assert torch.equal(whole, everybodys(size))
        with pytest.raises(ArgumentError, match="gather_single: gather_tensor: expected a contiguous tensor of"):
            torchs.gather_single(row(rank), whole[:0], dst=last)


def test_complex_numbers(rank: int, size: int) -> None:
    """torch views complex tensors as real ones. So it refuses products, and cannot view a conjugate."""
    x = torch.full((2,), 1 + 1j)
    dist.all_reduce(x)
    assert x.tolist() == [size * (1 + 1j)] * 2
    with pytest.raises(ValueError, match=r"does not support .*PRODUCT on complex"):
        dist.all_reduce(x, dist.ReduceOp.PRODUCT)
    with pytest.raises(RuntimeError, match="view_as_real"):
        dist.broadcast(x.conj(), 0)


# -- functional collectives -------------------------------------------------------------------------------------------


@needs(functional, "all_gather_single")
def test_functional_of_one_tensor(rank: int, size: int) -> None:
    """The newer names work, without autograd and with it."""
    world = dist.group.WORLD
    for gather in (functional.all_gather_single, functional.all_gather_single_autograd):
        assert torch.equal(functional.wait_tensor(gather(row(rank)[None], 0, world)), everybodys(size))
    for scatter in (functional.reduce_scatter_single, functional.reduce_scatter_single_autograd):
        assert torch.equal(functional.wait_tensor(scatter(everybodys(size), "sum", 0, world))[0], size * row(rank))


def test_functional_of_several_tensors(rank: int, size: int) -> None:
    world = dist.group.WORLD
    given = [row(rank), row(rank)[:2] * 2]
    reduced = functional.all_reduce_coalesced(given, "sum", world)
    assert torch.equal(reduced[1], total(size)[:2] * 2)
    for name in ("all_gather_into_tensor_coalesced", *["all_gather_single_coalesced"] * NEWER):
        assert torch.equal(getattr(functional, name)(given, world)[0], everybodys(size).view(-1))
    for name in ("reduce_scatter_tensor_coalesced", *["reduce_scatter_single_coalesced"] * NEWER):
        found = getattr(functional, name)([everybodys(size), 2 * everybodys(size)], "sum", [0, 0], world)
        assert torch.equal(found[1][0], 2 * size * row(rank))


def test_functional_in_place(rank: int, size: int) -> None:
    """torch.compile makes these of torch.distributed's own functions."""
    x, whole, block = row(rank), torch.empty(size, 3), torch.empty(1, 3)
    functional.all_reduce_inplace(x)
    assert torch.equal(x, total(size))
    functional.all_gather_tensor_inplace(whole, row(rank)[None])
    assert torch.equal(whole, everybodys(size))
    functional.reduce_scatter_tensor_inplace(block, whole)
    assert torch.equal(block[0], size * row(rank))
    outs = [torch.empty(3) for _ in range(size)]
    functional.all_gather_inplace(outs, row(rank))
    assert torch.equal(torch.stack(outs), everybodys(size))
    swapped = torch.empty(size)
    functional.all_to_all_inplace(swapped, torch.arange(float(size)) + 10 * rank)
    assert swapped.tolist() == [10.0 * r + rank for r in range(size)]


@needs(functional, "isend_inplace")
@pytest.mark.mpi(min_size=2)
def test_functional_messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    x: Any = torch.empty(3)
    sent = functional.isend_inplace(row(rank), right)
    received = functional.irecv_inplace(x, left)
    assert torch.equal(functional.wait_tensor(received), row(left))
    functional.wait_tensor(sent)


@needs(functional, "batch_p2p_ops_inplace")
def test_functional_batches(rank: int, size: int) -> None:
    """C++ coalesces them in the backend of the group's device, and not in the group."""
    x, y = row(rank), torch.empty(3)
    to, of = (rank + 1) % size, (rank - 1) % size
    with refused_without_backends_in_python():
        for t in functional.batch_p2p_ops_inplace(["isend", "irecv"], [to, of], [1, 1], [x, y], dist.group.WORLD):
            functional.wait_tensor(t)
        assert torch.equal(y, row(of))
    dist.all_reduce(x)
    assert torch.equal(x, total(size))


# -- meshes -----------------------------------------------------------------------------------------------------------


def test_a_mesh_of_a_group(rank: int, size: int) -> None:
    """And a mesh of two dimensions."""
    g = dist.new_group(list(range(size)))
    mesh = DeviceMesh.from_group(g, "cpu")
    assert mesh.get_group() is g
    assert mesh.size() == size
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("rows", "columns"))
    assert (mesh.get_rank(), mesh.get_local_rank("columns")) == (rank, rank)
    assert list(mesh.get_coordinate() or ()) == [0, rank]
    rows, columns = mesh.get_all_groups()
    assert dist.get_process_group_ranks(rows) == [rank]
    assert dist.get_process_group_ranks(columns) == list(range(size))
    assert mesh.get_group("columns") is columns


# -- torch.distributed.nn on the registered backend and on gloo, against mpicoll.torch.nn: values and gradients --

# torch's gradients of other reductions are not those of one process, and of _all_gather_base it has none but on NCCL.
NAMES = [name for name in CASES if ", avg" not in name and ", premul" not in name and name != "_all_gather_base"]

NOT_ON_GLOO = ["all_to_all"]  # torch makes scatters of it there, which take equal blocks only


def results(module: ModuleType, case: Case, g: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's output and the gradient of its input. Outputs that torch leaves undefined count for nothing."""
    assert g.rank is not None
    x = inputs(g.size)[g.rank].requires_grad_()
    y = case.ranks(module, g, x)
    counts = case.root is None or g.rank == range(g.size)[case.root]
    y = y * weights(g.size)[g.rank][: len(y)] * counts
    y.sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("backend", ["mpicoll", "gloo"])
def test_torchs_functions_find_the_same(backend: str, rank: int, size: int) -> None:
    ranks = list(range(size))
    ours = Group("ours", dist.new_group(ranks), ranks, rank)
    theirs = Group(backend, dist.new_group(ranks, backend=backend), ranks, rank)
    for name in NAMES if backend == "mpicoll" else [name for name in NAMES if name not in NOT_ON_GLOO]:
        for found, expected in zip(results(torchs, CASES[name], theirs), results(nn, CASES[name], ours), strict=True):
            torch.testing.assert_close(found, expected, msg=partial("{}: {}".format, name))
