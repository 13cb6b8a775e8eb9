"""Collectives of the kernel: every one against the oracle, through the slots, in pieces, with ranks that come late."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.arrays.dtypes import DTYPES, OPS
from mpicoll.calls.choose import NODE, SHARED
from mpicoll.errors import ArgumentError, MessageError
from mpicoll.fabrics.routes.node import SLOT
from tests import oracle
from tests.ranks.test_where_arrays_lie import drawn, expected_of, inputs_of, make
from tests.sharing import NEEDED

pytestmark = [*NEEDED, pytest.mark.sizes(2, 4)]

DRAWS = int(os.environ.get("MPICOLL_DRAWS", "150"))
MOVING = [name for name, table in COLLECTIVES.items() if table.moves and table.prefix is None]
LENGTHS = 1, 2, 3, 17, 300, 5_000, SLOT // 4 - 1, SLOT // 4, SLOT // 4 + 1, SLOT, SLOT + 3
"""Elements of four bytes: around what a slot has room for, and several pieces of it."""


@pytest.fixture
def comm() -> Iterator[mpicoll.Communicator]:
    with mpicoll.Communicator() as made:
        yield made


def test_random_calls(comm: mpicoll.Communicator) -> None:
    """Of any length. Some arrays lie in shared memory, on some ranks or on all."""
    seed = int(os.environ.get("MPICOLL_SEED", "20261128"))
    print(f"MPICOLL_SEED={seed}")
    common, own = random.Random(seed), random.Random(seed + 1 + comm.rank)
    routes = set()
    for i in range(DRAWS):
        d = drawn(common, comm.size, MOVING, LENGTHS) | {"algorithm": NODE}
        inputs = inputs_of(d, np.random.default_rng([seed, i]), comm.size)
        expected = expected_of(d, inputs)[comm.rank]
        if own.random() < 0.1:
            time.sleep(own.random() * 0.003)
        result, x, unchanged = make(comm, d, inputs, own)
        routes.add(comm.last_route)
        where = f"draw {i} on rank {comm.rank} of {comm.size}, {comm.last_route}: {d}"
        if expected is not None:
            np.testing.assert_array_equal(np.ravel(result), expected, err_msg=where)
        if x is not None and unchanged:
            np.testing.assert_array_equal(x, inputs[comm.rank], err_msg=where)
    assert routes == {NODE, SHARED}


@pytest.mark.parametrize("op", [name for name in OPS if name != "premul_sum"])
def test_every_reduction(comm: mpicoll.Communicator, op: str) -> None:
    fill = np.random.default_rng(5)
    for name, kind in DTYPES.items():
        if kind.kind not in OPS[op][0] or kind.storage is not None:
            continue
        for count in (3, SLOT // kind.itemsize + 1):
            inputs = [oracle.values(fill, name, (count,), op) for _ in range(comm.size)]
            expected = oracle.outcome("allreduce", inputs, op, 0, name)[comm.rank]
            for out in (None, np.empty(count, name), inputs[comm.rank]):
                found = comm.allreduce(inputs[comm.rank], op, out=out, algorithm=NODE)
                np.testing.assert_array_equal(found, expected, err_msg=f"{op} of {count} {name}")


@pytest.mark.parametrize("count", [0, 1, SLOT // 4, SLOT // 4 + 1, SLOT])
def test_prefixes(comm: mpicoll.Communicator, count: int) -> None:
    x = np.arange(count, dtype=np.float32) + comm.rank
    through = [np.arange(count, dtype=np.float32) * (r + 1) + r * (r + 1) // 2 for r in range(comm.size)]
    np.testing.assert_array_equal(comm.scan(x, algorithm=NODE), through[comm.rank])
    before = np.full(count, 7, np.float32)
    after = comm.exscan(x, out=before, algorithm=NODE)
    np.testing.assert_array_equal(after, through[comm.rank - 1] if comm.rank else np.full(count, 7))
    comm.scan(x, out=x, algorithm=NODE)
    np.testing.assert_array_equal(x, through[comm.rank])


@pytest.mark.parametrize("count", [5, 5_000, SLOT])
def test_values_are_combined_in_the_order_of_the_ranks(comm: mpicoll.Communicator, count: int) -> None:
    """Bit for bit, in pieces, in slices, and where arrays lie."""
    given = [np.random.default_rng(r).standard_normal(count * comm.size) for r in range(comm.size)]
    sums = list(accumulate(given))
    block = slice(count * comm.rank, count * (comm.rank + 1))
    shared = comm.empty(count * comm.size)
    shared[...] = given[comm.rank]
    for mine in (given[comm.rank], shared):
        np.testing.assert_array_equal(comm.allreduce(mine, algorithm=NODE), sums[-1])
        np.testing.assert_array_equal(
            comm.reduce_scatter(mine.reshape(comm.size, -1), algorithm=NODE).ravel(), sums[-1][block]
        )
        np.testing.assert_array_equal(comm.scan(mine, algorithm=NODE), sums[comm.rank])
        at_root = comm.reduce(mine, root=comm.size - 1, algorithm=NODE)
        assert at_root is None or (at_root == sums[-1]).all()


@pytest.mark.parametrize("count", [1, SLOT])
def test_each_rank_has_a_factor(comm: mpicoll.Communicator, count: int) -> None:
    """Of its own, and another one in the next call of the same array."""
    shared = comm.empty(count)
    for x in (np.empty(count), shared):
        x.fill(2.0)
        for factor in (0.5, 1.5):
            found = comm.allreduce(x, mpicoll.Op.premul_sum(comm.rank + factor), algorithm=NODE)
            assert (found == sum(2 * (r + factor) for r in range(comm.size))).all()
    numbers = np.full(count, 1 + 1j, np.complex64)
    found = comm.allreduce(numbers, mpicoll.Op.premul_sum(1j * (comm.rank + 1)), algorithm=NODE)
    assert (found == sum((r + 1) * (1j - 1) for r in range(comm.size))).all()


def test_sums_of_short_floats_are_rounded_once(comm: mpicoll.Communicator) -> None:
    x = np.full(SLOT, 1.0 if comm.rank else 2048.0, np.float16)  # 2048 + 1 is 2048
    expected = np.float16(np.float32(2048 + comm.size - 1))
    assert (comm.allreduce(x, algorithm=NODE) == expected).all()


def test_elements_longer_than_a_slot(comm: mpicoll.Communicator) -> None:
    """They are only moved, byte by byte."""
    x = np.full(3, comm.rank, np.dtype([("a", "u1", (SLOT + 5,))]))
    gathered = comm.allgather(x, algorithm=NODE)
    for rank in range(comm.size):
        assert (gathered[rank] == np.full(3, rank, x.dtype)).all()


def test_alltoallv(comm: mpicoll.Communicator) -> None:
    """Each rank knows its own counts alone, of which many are 0."""
    common, rank, size = np.random.default_rng(3), comm.rank, comm.size
    for turn in range(40):
        most = [3, 400, SLOT // 4 // size + 5, SLOT][turn % 4]
        counts = common.integers(0, most, (size, size)) * (common.random((size, size)) < 0.7)
        blocks = [
            [np.arange(n, dtype=np.float32) + 7 * i + 100 * j for j, n in enumerate(row)]
            for i, row in enumerate(counts)
        ]
        x = np.concatenate(blocks[rank])
        found = comm.alltoallv(x, counts[rank].tolist(), counts[:, rank].tolist(), algorithm=NODE)
        np.testing.assert_array_equal(found, np.concatenate([blocks[i][rank] for i in range(size)]))


def test_an_alltoallv_of_counts_that_differ(comm: mpicoll.Communicator) -> None:
    """Before data moves, and on the rank that expects something else."""
    counts = [4] * comm.size
    taken = [*counts]
    taken[(comm.rank + 1) % comm.size] += 1
    x = np.zeros(4 * comm.size)
    with pytest.raises(MessageError, match=r"alltoallv: expected 5 elements from rank \d; it sends 4"):
        comm.alltoallv(x, counts, taken, algorithm=NODE)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("operation", ["bcast", "scatter", "reduce", "gather", "scan"])
def test_a_rank_waits_for_those_whose_data_it_gets(comm: mpicoll.Communicator, operation: str) -> None:
    """The others come to the call only when they have heard that it is over on this rank."""
    rank, size = comm.rank, comm.size
    x, told, every = np.full(2, rank + 1.0), np.zeros(1), np.repeat(np.arange(size) + 1.0, 2)
    root = rank == 0
    calls: dict[str, tuple[int, Callable[[], Any], Any]] = {
        "bcast": (0, lambda: comm.bcast(x), 1.0),
        "scatter": (0, lambda: comm.scatter(every if root else None, out=np.zeros(2)), rank + 1.0),
        "scan": (0, lambda: comm.scan(x), (rank + 1) * (rank + 2) / 2),
        "reduce": (size - 1, lambda: comm.reduce(x), size * (size + 1) / 2 if root else None),
        "gather": (size - 1, lambda: comm.gather(x), every.reshape(size, 2) if root else None),
    }
    first, call, expected = calls[operation]
    for _ in range(30):
        if rank == first:
            found = call()
            for other in {*range(size)} - {first}:
                comm.send(told, other)
        else:
            comm.recv(told, first)
            found = call()
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("operation", ["barrier", "bcast", "allreduce", "reduce", "scan", "gather", "reduce_scatter"])
def test_the_kernel_alone_begins_a_repeated_call(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Off the root, too, where ``out`` is not used."""
    x, table = np.ones((comm.size, 3)), COLLECTIVES[operation]
    arguments: list[Any] = [x] * table.moves
    given: dict[str, Any] = {}
    if operation not in ("barrier", "bcast"):
        given["out"] = np.empty((comm.size, *x.shape) if table.gathers else x.shape[1:] if table.scatters else x.shape)
    getattr(comm, f"i{operation}")(*arguments, **given).wait()
    monkeypatch.setattr(comm._engine, "begun", None)
    getattr(comm, f"i{operation}")(*arguments, **given).wait()


@pytest.mark.mpi(min_size=2)
def test_roots_that_differ_are_found_at_the_next_call(comm: mpicoll.Communicator) -> None:
    """Each root of a bcast goes on at once. All ranks find it in the next call in which they wait."""
    with mpicoll.Communicator(check="off") as own:
        x = np.ones(2)
        own.bcast(x, root=own.rank)
        with pytest.raises(MessageError, match="another rank makes another call"):
            own.allreduce(x, out=x)


def test_many_calls_of_many_kinds(comm: mpicoll.Communicator) -> None:
    """A slot is written to again only when nobody reads it any more, whatever comes between."""
    own, mine = random.Random(comm.rank), comm.rank + 1.0
    total = comm.size * (comm.size + 1) / 2
    shared = comm.empty(SLOT)
    for i in range(300):
        x = np.full([1, 5_000, 70_000][i % 3], mine)
        if own.random() < 0.1:
            time.sleep(0.001)
        assert (comm.allreduce(x, algorithm=NODE) == total).all()
        if i % 4 == 0:
            shared.fill(mine)
            comm.allreduce(shared, out=shared)
            assert (shared == total).all()
        if i % 5 == 0:
            comm.barrier()
        if i % 7 == 0:
            comm.allreduce(x, out=x, algorithm="ring")
            assert (x == total).all()
            x.fill(mine)
            comm.bcast(x, root=i % comm.size, algorithm=NODE)
            assert (x == i % comm.size + 1).all()


@pytest.mark.parametrize("count", [1, SLOT])
def test_ranks_that_make_different_calls(count: int) -> None:
    """Each one learns it before data moves."""
    for rank_1_makes in ("max", "longer", "bcast"):
        with mpicoll.Communicator(check="off") as comm:
            other = comm.rank == 1
            x = np.full(count + (other and rank_1_makes == "longer"), 1.0 + comm.rank)
            what = "bcast" if other and rank_1_makes == "bcast" else "allreduce"
            given: dict[str, Any] = (
                {"op": "max" if other and rank_1_makes == "max" else "sum"} if what != "bcast" else {}
            )
            with pytest.raises(
                MessageError, match=f"^{what}.*: another rank makes another call, or gives other numbers"
            ):
                getattr(comm, what)(x, **given, algorithm=NODE)
            assert (x == 1.0 + comm.rank).all()


def test_messages_move_while_a_rank_waits(comm: mpicoll.Communicator) -> None:
    """The sender comes to the barrier only when the receiver, which is there already, has taken the message."""
    message = np.full(1 << 20, comm.rank)
    if comm.rank == 0:
        taken = np.empty_like(message)
        request = comm.irecv(taken, 1)
        comm.barrier(algorithm=NODE)
        request.wait()
        assert (taken == 1).all()
    else:
        if comm.rank == 1:
            comm.send(message, 0)
        comm.barrier(algorithm=NODE)


def test_ranks_that_are_alone(comm: mpicoll.Communicator) -> None:
    part = comm.split(comm.rank, 0)
    assert part is not None
    x = np.ones(9, np.float32)
    assert (part.allreduce(x, algorithm=NODE) == x).all()
    assert (part.bcast(x, algorithm=NODE) == 1).all()


def test_ranks_that_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "0")
    with mpicoll.Communicator() as comm, pytest.raises(ArgumentError, match=r"share no memory, .*given 'node'"):
        comm.allreduce(np.ones(9), algorithm=NODE)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [1, 100_000])
def test_an_alltoallv_whose_counts_differ_on_one_rank_fails_on_all(count: int, shared: bool, begins: bool) -> None:
    comm = mpicoll.Communicator()
    rank, size = comm.rank, comm.size
    new = comm.empty if shared else np.empty
    counts = [count] * size
    expected, said = counts, "another rank makes another call, or gives other numbers"
    if rank == 0:
        expected, said = [*counts[:-1], count + 1], f"expected {count + 1} elements from rank {size - 1}"
    xs, out = new(size * count, np.float64), new(sum(expected), np.float64)
    xs[...], out[...] = rank, -1
    call = (lambda *args: comm.ialltoallv(*args).wait()) if begins else comm.alltoallv
    with pytest.raises(MessageError, match=said):
        call(xs, counts, expected, out)
    assert (out == -1).all(), "nothing has moved"
