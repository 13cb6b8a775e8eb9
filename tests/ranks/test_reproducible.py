"""Reproducible reductions: the bits of an element depend on the ranks' values of it, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

import mpicoll
from mpicoll.calls import choose
from mpicoll.errors import ArgumentError
from tests.sharing import NEEDS_SHARED, SHARED

COUNTS = 5, 3 << 10, 90_001, 300_000
"""Elements of arrays that several routes would serve."""
DTYPES = "float32", "float64", "complex64", "float16", "bfloat16"

pytestmark = pytest.mark.mpi(min_size=2)

Values = Callable[[int, int], torch.Tensor]


@lru_cache
def whole(dtype: torch.dtype, rank: int) -> torch.Tensor:
    """A rank's values, of which shorter arrays have the first."""
    fill = np.random.default_rng(17 + rank)
    drawn = torch.from_numpy(fill.standard_normal(2 * max(COUNTS)) * 10.0 ** fill.integers(-3, 4, 2 * max(COUNTS)))
    return (torch.view_as_complex(drawn.view(-1, 2)) if dtype.is_complex else drawn[: max(COUNTS)]).to(dtype)


def values(dtype: str) -> Values:
    return lambda rank, count: whole(getattr(torch, dtype), rank)[:count].clone()


def in_rank_order(of: Values, size: int, count: int, op: str) -> torch.Tensor:
    """The definition: ((0 + 1) + 2) and so on. Short floats are combined in float32, and rounded once."""
    rows = [of(rank, count) for rank in range(size)]
    short = rows[0].dtype in (torch.float16, torch.bfloat16)
    wide = [row.float() for row in rows] if short else rows
    found = wide[0]
    for row in wide[1:]:
        found = found * row if op == "prod" else torch.minimum(found, row) if op == "min" else found + row
    if op == "avg":
        # of a complex number each part
        found = torch.view_as_complex(torch.view_as_real(found) / size) if found.is_complex() else found / size
    return found.to(rows[0].dtype)


def bits(x: Any) -> bytes:
    return torch.as_tensor(x).contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("op", ["sum", "avg", "min"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_the_definition(dtype: str, op: str) -> None:
    if dtype == "complex64" and op == "min":
        pytest.skip("complex numbers have no order")
    of = values(dtype)
    with mpicoll.Communicator(reproducible=True) as comm:
        for count in COUNTS:
            expected, mine = in_rank_order(of, comm.size, count, op), of(comm.rank, count)
            assert bits(comm.allreduce(mine, op=op)) == bits(expected), count
            shifted = torch.cat([mine[:1], mine])[1:]  # at another place in memory
            assert bits(comm.allreduce(shifted, op=op)) == bits(expected), count
            request = comm.iallreduce(mine, op=op)
            request.wait()
            assert bits(request.result) == bits(expected), count
            reduced = comm.reduce(mine, op=op, root=comm.size - 1)
            assert reduced is None or bits(reduced) == bits(expected), count
            part = count // comm.size
            assert bits(comm.reduce_scatter(mine[: part * comm.size].view(comm.size, part), op=op)) == bits(
                expected[comm.rank * part : (comm.rank + 1) * part]
            ), count
            assert bits(comm.scan(mine, op=op)) == bits(in_rank_order(of, comm.rank + 1, count, op)), count


@NEEDS_SHARED
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_arrays_in_shared_memory_give_the_same(dtype: str) -> None:
    of = values(dtype)
    with mpicoll.Communicator(reproducible=True) as comm:
        for count in COUNTS[-2:]:
            x = comm.empty(count, dtype)
            routes = []
            for _ in range(3):
                x[...] = of(comm.rank, count).numpy()
                comm.allreduce(x, out=x)
                routes.append(comm.last_route)
                assert bits(x) == bits(in_rank_order(of, comm.size, count, "sum"))
            assert set(routes) == {choose.SHARED}
            x[...] = of(comm.rank, count).numpy()
            assert bits(comm.scan(x)) == bits(in_rank_order(of, comm.rank + 1, count, "sum"))
            reduced = comm.reduce(x, root=comm.size - 1)
            assert reduced is None or bits(reduced) == bits(in_rank_order(of, comm.size, count, "sum"))


def test_what_has_no_order_may_have_any_algorithm() -> None:
    with mpicoll.Communicator(reproducible=True) as comm, mpicoll.Communicator() as other:
        for x in (np.ones(100, np.int32), np.ones(100, np.int64)):
            comm.allreduce(x)
            other.allreduce(x)
            assert comm.last_route == other.last_route
        comm.allreduce(np.ones(100, np.int32), algorithm="ring")
        assert comm.last_route == "ring"


def test_another_algorithm_is_refused() -> None:
    with mpicoll.Communicator(reproducible=True) as comm:
        x = np.ones(100)
        for name in ("native", "ring"):
            orders = "node or exchange" if SHARED else "exchange"
            expected = f"expected None or {orders}: reductions are reproducible; given '{name}'"
            with pytest.raises(ArgumentError, match=f"allreduce: algorithm: {expected}"):
                comm.allreduce(x, algorithm=name)
            with pytest.raises(ArgumentError, match=f"iallreduce: algorithm: {expected}"):
                comm.iallreduce(x, algorithm=name)
        comm.allreduce(x, algorithm="exchange")
        comm.allgather(x, algorithm="ring")
        for part in (comm.split(0), comm.node, comm.subset(range(comm.size))):  # they are reproducible, too
            with pytest.raises(ArgumentError, match=r"allreduce: algorithm: expected None or .*reproducible"):
                part.allreduce(x, algorithm="ring")
        with pytest.raises(ArgumentError, match="reproducible: expected the same on all ranks; given True on"):
            mpicoll.Communicator(reproducible=comm.rank == 0)
