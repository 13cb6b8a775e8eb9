"""Functional collectives: out of place, in the graph of a compiled function, and several as one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import mpicoll.torch
from mpicoll.errors import ArgumentError
from mpicoll.torch.private import BACKENDS_IN_PYTHON
from tests.ranks.torch.programs.training import everybodys, row, total

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.13 has other names for some

NEWER = hasattr(dist, "all_gather_single")
"""Whether torch has its newer names, since 2.13."""


def needs(where: Any, name: str) -> pytest.MarkDecorator:
    """Marks a test of a function that torch 2.11 does not have."""
    return pytest.mark.skipif(not hasattr(where, name), reason=f"torch {torch.__version__} has no {name}")


def rows(rank: int, size: int) -> torch.Tensor:
    """The rows that ``rank`` has, one for each rank."""
    return torch.stack([100.0 * rank + row(r) for r in range(size)])


def test_functions(rank: int, size: int) -> None:
    """The Python functions over the operators, with groups given in each of the ways that torch takes."""
    world = dist.group.WORLD
    for group in (world, list(range(size)), world.group_name):
        assert torch.equal(functional.all_reduce(row(rank), "sum", group), total(size))
    assert torch.equal(
        functional.all_gather_tensor(row(rank)[None], 0, world), torch.stack([row(r) for r in range(size)])
    )
    assert torch.equal(
        functional.all_gather_tensor(row(rank)[:, None], 1, world), torch.stack([row(r) for r in range(size)], 1)
    )
    expected = torch.stack([rows(r, size)[rank] for r in range(size)])
    assert torch.equal(functional.reduce_scatter_tensor(rows(rank, size), "sum", 0, world)[0], expected.sum(0))
    assert torch.equal(functional.all_to_all_single(rows(rank, size), None, None, world), expected)
    assert torch.equal(functional.broadcast(row(rank), 0, world), row(0))
    ring = functional.permute_tensor(row(rank), [(r + 1) % size for r in range(size)], world)
    assert torch.equal(ring, row((rank - 1) % size))


@needs(functional, "all_gather_single")
def test_newer_names(rank: int, size: int) -> None:
    """torch.distributed's, and the functional ones without autograd and with it."""
    world, whole, block = dist.group.WORLD, torch.empty(size, 3), torch.empty(1, 3)
    dist.all_gather_single(whole, row(rank)[None])
    dist.reduce_scatter_single(block, whole)
    assert torch.equal(whole, everybodys(size))
    assert torch.equal(block[0], size * row(rank))
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
    """C++ coalesces them in the backend of the group's device. Where it finds none, it raises."""
    x, y = row(rank), torch.empty(3)
    to, of = (rank + 1) % size, (rank - 1) % size
    with nullcontext() if BACKENDS_IN_PYTHON else pytest.raises(RuntimeError, match="No backend type associated"):
        for t in functional.batch_p2p_ops_inplace(["isend", "irecv"], [to, of], [1, 1], [x, y], dist.group.WORLD):
            functional.wait_tensor(t)
        assert torch.equal(y, row(of))
    dist.all_reduce(x)
    assert torch.equal(x, total(size))


def test_other_calls_on_their_results(rank: int, size: int) -> None:
    """Who uses a result waits for it. It has no memory of its own, so a call writes where the result lies."""
    world: Any = dist.group.WORLD

    def result() -> torch.Tensor:
        found: torch.Tensor = functional.all_reduce(row(rank), "sum", world)
        assert type(found) is functional.AsyncCollectiveTensor
        return found

    x, parts, block = result(), [result() for _ in range(size)], result()
    dist.all_reduce(x)
    assert torch.equal(x + 0, size * total(size))
    dist.all_gather(parts, result() + rank)
    assert all(torch.equal(part + 0, total(size) + r) for r, part in enumerate(parts))
    work = dist.reduce_scatter(block, parts, async_op=True)
    work.wait()
    assert torch.equal(block + 0, size * (total(size) + rank))
    assert torch.equal(world.comm.allreduce(result(), "avg"), total(size))
    transposed = functional.all_reduce(rows(rank, size), "sum", world).t()
    dist.broadcast(transposed, 0)
    assert torch.equal(transposed + 0, torch.stack([rows(r, size) for r in range(size)]).sum(0).t())


def test_gradients(rank: int, size: int) -> None:
    """These functions have gradients."""
    x = row(rank).requires_grad_()
    found = functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
    (2 * found).sum().backward()  # the gradient of a mere sum is an expanded tensor, which torch 2.11 does not take
    assert torch.equal(x.grad, torch.full((3,), 2.0 * size))
    y = rows(rank, size).requires_grad_()
    weights = row(rank)
    (functional.reduce_scatter_tensor_autograd(y, "sum", 0, dist.group.WORLD) * weights).sum().backward()
    assert torch.equal(y.grad, torch.stack([row(r) for r in range(size)]))
    z = rows(rank, size).requires_grad_()
    (functional.all_to_all_single_autograd(z, None, None, dist.group.WORLD) * weights).sum().backward()
    assert torch.equal(z.grad, torch.stack([row(r) for r in range(size)]))


def test_compiled(rank: int, size: int) -> None:
    """torch.compile makes one graph, in which the collectives are operators."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        gathered = functional.all_gather_tensor(y, 0, dist.group.WORLD)
        return functional.reduce_scatter_tensor(gathered, "sum", 0, dist.group.WORLD) + 1

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(row(rank)), 2 * size * total(size) + 1)


def test_compiled_torch_distributed(rank: int, size: int) -> None:
    """torch.compile replaces torch.distributed's own functions by functional ones."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        dist.all_reduce(y)
        out = torch.empty(size * 3)
        dist.all_gather_into_tensor(out, y)
        return out.sum() + y

    expected = total(size) + size
    assert torch.equal(program(row(rank)), size * expected.sum() + expected)


@pytest.mark.slow
@pytest.mark.parametrize("api", [dist, mpicoll.torch], ids=["torch.distributed", "mpicoll.torch"])
def test_compiled_around_collectives(api: Any, rank: int, size: int) -> None:
    """torch.compile makes no operators of these: the function that calls them is compiled before and after each."""

    @torch.compile(backend="aot_eager")
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        api.broadcast(y, 0)
        parts = [torch.empty(3) for _ in range(size)]
        api.all_gather(parts, y * rank)
        api.scatter(y, parts if rank == 0 else None, 0)
        work = api.all_reduce(y, async_op=True)
        z = x * 2
        work.wait()
        api.send(z, (rank + 1) % size) if rank % 2 == 0 else api.recv(z, (rank - 1) % size)
        api.barrier()
        return y + z

    if size % 2 == 0:  # everybody sends or receives
        whole = (row(0) + 1) * sum(range(size))
        for _ in range(2):
            assert torch.equal(program(row(rank)), whole + 2 * row(rank - rank % 2))


# -- several as one ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("device", [None, torch.device("cpu")], ids=["fast path", "by device"])
def test_coalescing_manager(device: torch.device | None, asynchronous: bool, rank: int, size: int) -> None:
    def together(calls: list[Callable[[], object]]) -> None:
        with dist.distributed_c10d._coalescing_manager(device=device, async_ops=asynchronous) as works:
            for call in calls:
                call()
        if asynchronous:
            works.wait()

    xs, outs, mine = [row(rank) * k for k in range(3)], torch.empty(2, 3 * size), torch.empty(2, 1, 3)
    together([partial(dist.all_reduce, x) for x in xs])
    assert all(torch.equal(x, total(size) * k) for k, x in enumerate(xs))
    together([partial(dist.all_gather_into_tensor, outs[k], row(rank) + k) for k in range(2)])
    assert all(torch.equal(outs[k], torch.cat([row(r) + k for r in range(size)])) for k in range(2))
    together([partial(dist.reduce_scatter_tensor, mine[k], rows(rank, size) * (k + 1)) for k in range(2)])
    expected = torch.stack([rows(r, size)[rank] for r in range(size)]).sum(0, keepdim=True)
    assert all(torch.equal(mine[k], expected * (k + 1)) for k in range(2))


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
