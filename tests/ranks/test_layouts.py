"""Calls that are made again, on arrays of all layouts: a plan serves the memory and counts for which it was bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicoll
from mpicoll.errors import ArgumentError
from tests.arrays import KINDS, kinds

pytestmark = pytest.mark.sizes(1, 2, 3, 4)


def made(comm: mpicoll.Communicator, form: str, blocks: bool, arguments: dict[str, Any]) -> Any:
    return getattr(comm, form)(**arguments) if blocks else getattr(comm, f"i{form}")(**arguments).wait()


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "does not block"])
def test_other_counts_are_another_call(blocks: bool) -> None:
    """Though they are in the same list, and the arrays have as many elements."""
    comm = mpicoll.Communicator()
    size, rank = comm.size, comm.rank
    counts, xs = [2] * size, np.arange(4.0 * size).reshape(2 * size, 2)
    for turn in range(4):
        counts[:] = [2] * size
        if turn % 2 and size > 1:
            counts[0], counts[1] = 1, 3
        starts = [0, *np.cumsum(counts).tolist()]
        begin, end = list(pairwise(starts))[rank]
        y = np.empty((counts[rank], 2))
        made(comm, "scatterv", blocks, {"xs": xs, "counts": counts, "out": y})
        np.testing.assert_array_equal(y, xs[begin:end])
        made(comm, "reduce_scatterv", blocks, {"xs": xs, "counts": tuple(counts), "out": y})
        np.testing.assert_array_equal(y, size * xs[begin:end])
        gathered = np.empty_like(xs)
        made(comm, "allgatherv", blocks, {"x": xs[begin:end], "counts": counts, "out": gathered})
        np.testing.assert_array_equal(gathered, xs)


def test_many_counts_of_the_same_arrays() -> None:
    """More than the kernel has sets of calls at first, so that it must tell calls apart whose hashes begin alike."""
    comm = mpicoll.Communicator()
    if comm.size < 2:
        pytest.skip("one rank has one way to divide its rows")
    rows, own = 100, 5
    xs, out = np.arange(float(rows)).reshape(rows, 1), np.empty((own, 1))
    for _ in range(2):
        for cut in range(rows - own):
            counts = [cut, own, *[0] * (comm.size - 2)]  # rank 1 has the same array each time
            if comm.size > 2:
                counts[-1] = rows - own - cut
            begin, end = list(pairwise([0, *np.cumsum(counts).tolist()]))[comm.rank]
            result = out if comm.rank == 1 else np.empty((end - begin, 1))
            comm.scatterv(xs[: sum(counts)], counts, 0, result)
            np.testing.assert_array_equal(result, xs[begin:end])


def test_other_rows_are_another_call() -> None:
    """Of as many elements, at the same place, but more or fewer rows than the counts say."""
    comm = mpicoll.Communicator()
    memory, gathered = np.arange(6.0), np.empty(6 * comm.size)
    counts = [3] * comm.size
    for _ in range(2):
        comm.allgatherv(memory.reshape(3, 2), counts, gathered.reshape(-1, 2))
        with pytest.raises(ArgumentError, match=r"3 rows"):
            comm.allgatherv(memory.reshape(6, 1), counts, gathered.reshape(-1, 1))


LENT: dict[str, Callable[[Sequence[int]], Any]] = {
    "memoryview": lambda values: np.array(values, np.int8).data,
    "bytearray": lambda values: bytearray(np.array(values, np.int8)),
}


@pytest.mark.parametrize("kind", LENT)
def test_lent_memory_stays_while_a_call_is_under_way(kind: str) -> None:
    comm = mpicoll.Communicator()
    for _ in range(3):
        x, y = LENT[kind]([comm.rank + 1] * 9), LENT[kind]([0] * 9)
        if comm.rank:  # the first rank's call cannot be complete before
            comm.recv_object(0)
        request = comm.iallreduce(x, out=y)
        if comm.rank == 0 and comm.size > 1 and isinstance(x, bytearray):
            with pytest.raises(BufferError):
                x.extend(b"more")
        for other in range(1, comm.size) if comm.rank == 0 else ():
            comm.send_object(None, other)
        request.wait()
        assert bytes(memoryview(y)) == bytes([sum(range(comm.size + 1))] * 9)
        if isinstance(x, bytearray):
            del request
            x.extend(b"more" * 50)  # nothing holds it any more, and its memory is another one
            comm.bcast(x)
            assert x == bytes([1] * 9) + b"more" * 50


# -- plans: they serve the memory that they were bound for --


def test_each_layout_of_one_memory_has_a_plan(comm: mpicoll.Communicator) -> None:
    """A plan never serves memory that it was not bound for, and copies in each call."""
    memory = np.arange(64.0)
    layouts = [
        memory[:6], memory[:12:2], memory[:18:3], memory[5::-1], memory[:6].reshape(2, 3), memory[:6].reshape(3, 2).T,
        memory[:12].reshape(3, 4)[:, :2], memory.reshape(8, 8)[:2, :3], memory.view(np.int64)[:12:2],
    ]  # fmt: skip
    for _ in range(2):
        for x in layouts:
            memory[:] = np.arange(64.0) + comm.rank
            memory.view(np.int64)[1::2] += comm.rank if x.dtype == np.int64 else 0
            own = x.copy()
            expected = sum(comm.allgather_object(own))
            before = memory.copy()
            assert comm.allreduce(x, out=x) is x
            assert (x == expected).all()
            x[...] = own
            assert memory.tobytes() == before.tobytes()


def test_messages_with_gaps_are_bound_once(comm: mpicoll.Communicator) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    grid = np.zeros((4, 6))
    nobody = MPI.PROC_NULL
    for turn in range(3):
        grid[:] = 100 * turn + 10 * comm.rank
        comm.sendrecv(grid[:, 1], after, grid[:, -1], before)
        comm.sendrecv(grid[:, 2], after, grid[:, 2], before)
        comm.sendrecv(grid[:, 1], nobody, grid[:, 0], nobody)
        comm.sendrecv(grid[:, 1], after, grid[:, 0], nobody) if comm.rank < after else None
        comm.sendrecv(grid[:, 1], nobody, grid[:, 0], before) if before < comm.rank else None
        requests = [comm.irecv(grid[:, column], before, tag=column) for column in (3, 4)]
        twice = [comm.isend(grid[:, 1], after, tag=column) for column in (3, 4)]
        for request in (*requests, *twice):
            request.wait()
        came, own = 100 * turn + 10 * before, 100 * turn + 10 * comm.rank
        first = came if before < comm.rank else own
        assert grid.tolist() == [[first, own, came, came, came, came]] * 4


@pytest.mark.parametrize("kind", ["numpy", "torch", "torch, bfloat16"])
def test_arrays_elsewhere_are_taken_by_a_plan_that_is_known(comm: mpicoll.Communicator, kind: str) -> None:
    """But memory that overlaps is still refused, and one memory is in place."""
    memory, total = np.ones(30, np.float32), float(comm.size)
    given: Any = memory if kind == "numpy" else torch.from_numpy(memory)
    given = given if kind != "torch, bfloat16" else given.bfloat16()

    def part(begin: int, n: int = 5) -> Any:
        return given[begin : begin + n]

    comm.allreduce(part(0), out=part(5))
    comm.allreduce(part(0))
    comm.allgather(part(0), out=part(0).repeat(comm.size))
    for begin in (5, 12, 20):
        part(begin)[...] = begin + comm.rank
        expected = [comm.size * begin + sum(range(comm.size))] * 5
        assert comm.allreduce(part(begin)).tolist() == expected
        comm.allreduce(part(begin), out=part(0))
        assert part(0).tolist() == expected
        everybody = comm.allgather(part(begin))
        assert everybody[:, 0].tolist() == [begin + r for r in range(comm.size)]
    with pytest.raises(ArgumentError, match=r"out: expected .* overlap"):
        comm.allreduce(part(12), out=part(14))
    part(12)[...] = 1
    for _ in range(2):
        comm.allreduce(part(12), out=part(12))
    assert part(12).tolist() == [total * total] * 5


@pytest.mark.parametrize("operation", ["allreduce", "scan"])
@pytest.mark.parametrize("shape", [(), (5, 3)])
@pytest.mark.parametrize(
    ("dtype", "kind"), [(dtype, k) for dtype in ("float32", "bfloat16") for k in kinds(dtype)[:-1]]
)
def test_every_result_is_a_new_array(
    comm: mpicoll.Communicator, dtype: str, kind: str, shape: tuple[int, ...], operation: str
) -> None:
    """Its kind, shape and dtype are those of the first one, whoever has made it."""
    x = KINDS[kind](np.ones(shape, np.float32), dtype)
    ranks = comm.size if operation == "allreduce" else comm.rank + 1
    made = [getattr(comm, operation)(x) for _ in range(5)]
    assert {(type(y), tuple(y.shape), y.dtype) for y in made} == {(type(made[0]), tuple(x.shape), x.dtype)}
    for y in made:
        y += 1  # which nobody else sees
        assert (y == ranks + 1).all()
    assert (x == 1).all()
    empty = comm.allreduce(x[:0]) if x.ndim else None
    assert empty is None or (empty.shape == x[:0].shape and empty.dtype == x.dtype)
