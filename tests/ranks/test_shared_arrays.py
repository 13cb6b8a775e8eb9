"""Arrays that lie in memory which the node's ranks share: what is computed there, and when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import mpicoll
from mpicoll.calls import choose
from mpicoll.calls.choose import NODE, SHARED
from mpicoll.fabrics.routes.node import SLOT
from mpicoll.machine import blocks
from tests import oracle
from tests.sharing import NEEDED

LONG = 8 * blocks.LEAST
"""Elements: enough of them for any dtype."""
MIB = 1 << 20

pytestmark = [*NEEDED, pytest.mark.sizes(2, 4)]


@pytest.fixture
def comm() -> Iterator[mpicoll.Communicator]:
    with mpicoll.Communicator() as made:
        yield made


def shared(comm: mpicoll.Communicator, given: Any) -> Any:
    """A copy in shared memory."""
    made = comm.empty_like(given)
    made[...] = given
    return made


def test_only_a_collective_with_an_algorithm_of_its_own_is_not_made_where_arrays_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MPICOLL_ALGORITHM", "bcast:linear")
    with mpicoll.Communicator() as comm:
        x = shared(comm, np.ones(LONG, np.float32))
        comm.allreduce(x, out=x)
        assert comm.last_route == SHARED
        comm.bcast(x)
        assert comm.last_route == "linear"


@pytest.mark.parametrize("count", [blocks.LEAST, LONG, LONG + 1, 3 * SLOT + 5])
@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("float32", "sum"), ("float64", "avg"), ("float32", "max"), ("int32", "prod"), ("int64", "avg"),
        ("uint8", "sum"), ("float16", "sum"), ("float16", "avg"), ("complex64", "sum"), ("bool", "lxor"),
    ],
)  # fmt: skip
def test_every_kind_of_reduction(comm: mpicoll.Communicator, dtype: str, op: str, count: int) -> None:
    fill = np.random.default_rng(count)
    given = [oracle.values(fill, dtype, (count,), op) for _ in range(comm.size)]
    expected = oracle.rounded(oracle.reducer(op, dtype)([g.astype(oracle.held(dtype)) for g in given]), dtype)
    x = shared(comm, given[comm.rank])
    out = comm.empty_like(x)
    assert comm.allreduce(x, op, out=out) is out
    assert comm.last_route == SHARED
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(x, given[comm.rank])  # an input is only read
    comm.allreduce(x, op, out=x)
    np.testing.assert_array_equal(x, expected)


def test_an_average_where_the_sum_is_too_large(comm: mpicoll.Communicator) -> None:
    x = comm.empty(LONG, np.float16)
    x.fill(60000)
    comm.allreduce(x, "avg", out=x)
    assert comm.last_route == SHARED
    assert (x == 60000).all()


def test_tensors(comm: mpicoll.Communicator) -> None:
    x = torch.from_numpy(comm.empty(LONG, np.int16)).view(torch.bfloat16)
    x.fill_(comm.rank + 1)
    comm.allreduce(x, out=x)
    assert comm.last_route == SHARED
    assert (x == sum(range(1, comm.size + 1))).all()


def test_some_ranks_have_ordinary_arrays(comm: mpicoll.Communicator) -> None:
    """In one call, and in the next one none has. Each call is right, and goes where its arrays lie if all can."""
    for odd in range(comm.size):
        for made in (np.empty, comm.empty):
            x = made(LONG) if comm.rank == odd else comm.empty(LONG)
            for _ in range(2):
                x.fill(comm.rank)
                comm.allreduce(x, out=x)
                assert comm.last_route == (NODE if made is np.empty else SHARED)
                assert (x == sum(range(comm.size))).all()


def test_long_moves_of_ordinary_arrays_are_the_mpis(comm: mpicoll.Communicator) -> None:
    for made, route in ((np.empty, "native"), (comm.empty, SHARED)) * 2:
        x = made(choose.LONG_MOVES // 8)
        x.fill(comm.rank)
        comm.bcast(x, root=1)
        assert comm.last_route == route
        assert (x == 1).all()


def test_short_arrays_are_not_looked_for(comm: mpicoll.Communicator) -> None:
    x = comm.empty(LONG)[: blocks.LEAST // 8 - 1]
    x.fill(1)
    comm.allreduce(x, out=x)
    assert comm.last_route == NODE
    assert (x == comm.size).all()


def test_arrays_that_come_and_go(comm: mpicoll.Communicator) -> None:
    """Each rank gives other arrays, of which some lie where others lay."""
    mine, kept = random.Random(comm.rank), []
    for k in range(200):
        x = comm.empty(LONG + mine.choice([0, 8, 4096]))[:LONG]
        x.fill(k + comm.rank)
        kept.append(x)
        del kept[: mine.randrange(len(kept))]
        comm.allreduce(x, out=x)
        assert comm.last_route == SHARED
        assert (x == comm.size * k + sum(range(comm.size))).all()


def test_results_lie_where_inputs_do(comm: mpicoll.Communicator) -> None:
    x = comm.empty((comm.size, LONG), np.float32)
    x.fill(comm.rank)
    for given in (x, torch.from_numpy(x), torch.from_numpy(x).view(torch.bfloat16)):
        for name in ("allreduce", "reduce_scatter", "allgather", "alltoall"):
            getattr(comm, name)(given)
            assert comm.last_route == SHARED, (name, type(given))
    gathered = comm.allgather(x)
    assert gathered.shape == (comm.size, comm.size, LONG)
    assert all((gathered[r] == r).all() for r in range(comm.size))
    at_root = comm.reduce(x)
    assert comm.last_route == SHARED
    assert at_root is None or (at_root == sum(range(comm.size))).all()
    ordinary = comm.allreduce(np.ones(LONG))
    assert blocks.own_at(ordinary.ctypes.data, 1) is None


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_with_gaps_are_ordinary_ones(comm: mpicoll.Communicator, library: str) -> None:
    whole = np.arange(2 * LONG, dtype=np.float64).reshape(LONG, 2) + comm.rank
    column: Any = whole[:, 1] if library == "numpy" else torch.from_numpy(whole)[:, 1]
    expected = sum(2 * np.arange(LONG) + 1.0 + r for r in range(comm.size))
    plain, result = comm.empty(LONG), comm.empty(LONG)
    plain[...] = whole[:, 1]  # some ranks may give arrays without gaps
    for turn in range(3):
        x: Any = plain if (turn + comm.rank) % 3 == 0 else column
        comm.allreduce(x, out=result if library == "numpy" else torch.from_numpy(result))
        assert comm.last_route == NODE
        np.testing.assert_array_equal(result, expected)
    comm.allreduce(column, out=column)
    assert comm.last_route == NODE
    np.testing.assert_array_equal(whole[:, 1], expected)
    np.testing.assert_array_equal(whole[:, 0], 2 * np.arange(LONG) + comm.rank)


def test_messages_move_while_ranks_wait_for_each_other(comm: mpicoll.Communicator) -> None:
    """The sender comes to the allreduce only when the receiver, which is there already, has taken the message."""
    x, message = comm.zeros(LONG), np.full(1 << 20, comm.rank)
    if comm.rank == 0:
        taken = np.empty_like(message)
        request = comm.irecv(taken, 1)
        comm.allreduce(x, out=x)
        request.wait()
        assert (taken == 1).all()
    else:
        if comm.rank == 1:
            comm.send(message, 0)
        comm.allreduce(x, out=x)
    assert comm.last_route == SHARED


def test_communicators_made_of_it(comm: mpicoll.Communicator) -> None:
    part = comm.split(0, -comm.rank)
    assert part is not None
    with part:
        x = comm.empty(LONG)
        for route in (SHARED, SHARED):
            x.fill(part.rank)
            part.allreduce(x, out=x)
            assert part.last_route == route
            assert (x == sum(range(part.size))).all()


def test_calls_that_are_bound(comm: mpicoll.Communicator) -> None:
    x = comm.empty(LONG)
    call = comm.bind("allreduce", x, out=x)
    for _ in range(3):
        x.fill(1)
        call()
        assert comm.last_route == SHARED
        assert (x == comm.size).all()


def test_an_algorithm_that_is_named_is_taken(comm: mpicoll.Communicator) -> None:
    x = comm.zeros(LONG)
    comm.allreduce(x, out=x, algorithm="ring")
    assert comm.last_route == "ring"
