"""Functional collectives: out of place, in the graph of a compiled function, and several as one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import mpicoll.torch
from tests.ranks.torch.programs.training import refused_without_backends_in_python, row, total

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.13 has other names for some

OPS = torch.ops._c10d_functional
"""What torch.compile and DTensor call, from C++."""


@pytest.fixture
def name() -> str:
    """The name of the default group. Operators take names of groups."""
    return str(dist.group.WORLD.group_name)


def rows(rank: int, size: int) -> torch.Tensor:
    """The rows that ``rank`` has, one for each rank."""
    return torch.stack([100.0 * rank + row(r) for r in range(size)])


def test_the_operator_that_torch_keeps_to_itself(name: str, rank: int, size: int) -> None:
    """C++ calls this one on the backend of the group's device, and not on the group."""
    out = torch.empty(3 * size)
    with refused_without_backends_in_python():
        OPS.wait_tensor(OPS.all_gather_into_tensor_out(row(rank), size, name, out=out))
        assert torch.equal(out, torch.cat([row(r) for r in range(size)]))
    assert torch.equal(OPS.wait_tensor(OPS.all_reduce(row(rank), "sum", name)), total(size))


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


def test_messages_as_one(rank: int, size: int) -> None:
    """batch_isend_irecv calls this on backends that coalesce messages."""
    coming = torch.empty(3)
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
        dist.isend(row(rank), (rank + 1) % size)
        dist.irecv(coming, (rank - 1) % size)
    works.wait()
    assert torch.equal(coming, row((rank - 1) % size))
