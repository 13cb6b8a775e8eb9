"""Arrays of other libraries than NumPy and torch: a call on one of them gives an array of its library.

JAX is tested where it is installed. Elsewhere, a library that is as strict stands in for it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.communicator.engine.requests import Request
from mpicoll.errors import ArgumentError


class Frozen:
    """An array of a library of its own: immutable, and known by the array API standard and DLPack alone."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self._x = x.view()
        self._x.flags.writeable = False

    def __array_namespace__(self, **_: Any) -> ModuleType:
        return FROZEN

    def __dlpack__(self, **options: Any) -> Any:
        return self._x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def values(self) -> np.ndarray[Any, Any]:
        return self._x


FROZEN = ModuleType("frozen")
FROZEN.from_dlpack = lambda x: Frozen(np.from_dlpack(x))  # type: ignore[attr-defined]


def frozen(x: np.ndarray[Any, Any], dtype: str) -> Frozen:
    return Frozen(x.astype(dtype))


def jax_array(x: np.ndarray[Any, Any], dtype: str) -> Any:
    return importlib.import_module("jax.numpy").asarray(x).astype(dtype)


def values(x: Any) -> np.ndarray[Any, Any]:
    return (x.values() if isinstance(x, Frozen) else np.asarray(x)).astype("float64")


def writable(x: Any) -> np.ndarray[Any, Any]:
    return np.array(x.values() if isinstance(x, Frozen) else x)


Make = Callable[[np.ndarray[Any, Any]], Any]
no_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
KINDS = [
    pytest.param(partial(frozen, dtype="float32"), id="float32"),
    pytest.param(partial(frozen, dtype="int64"), id="int64"),
    *(
        pytest.param(partial(jax_array, dtype=dtype), id=f"jax-{dtype}", marks=no_jax)
        for dtype in ("float32", "bfloat16", "float16", "int32")
    ),
]
every = pytest.mark.parametrize("make", KINDS)


@pytest.fixture
def comm() -> mpicoll.Communicator:
    return mpicoll.Communicator()


def given(rank: int, *shape: int) -> np.ndarray[Any, Any]:
    """Small whole numbers, which every dtype holds exactly, and their sums, too."""
    return np.arange(np.prod(shape)).reshape(shape) % 5 + rank


Case = Callable[[mpicoll.Communicator, Make], tuple[str, dict[str, Any], Any]]
"""The method, its arguments, and the values of what it returns; None where it returns nothing."""


def inputs(comm: mpicoll.Communicator, *shape: int) -> np.ndarray[Any, Any]:
    return np.stack([given(rank, *shape) for rank in range(comm.size)])


def last(comm: mpicoll.Communicator) -> int:
    return comm.size - 1


def rows_of(comm: mpicoll.Communicator, rank: int) -> np.ndarray[Any, Any]:
    return given(rank, rank + 1, 2)


def triangle(comm: mpicoll.Communicator) -> np.ndarray[Any, Any]:
    return given(comm.rank, comm.size * (comm.size + 1) // 2, 2)


def of_rank(comm: mpicoll.Communicator, rows: Any) -> Any:
    start = comm.rank * (comm.rank + 1) // 2
    return rows[start : start + comm.rank + 1]


CASES: dict[str, Case] = {
    "allreduce": lambda c, a: ("allreduce", {"x": a(given(c.rank, 3, 2))}, inputs(c, 3, 2).sum(0)),
    "ring": lambda c, a: ("allreduce", {"x": a(given(c.rank, 7)), "algorithm": "ring"}, inputs(c, 7).sum(0)),
    "max": lambda c, a: ("allreduce", {"x": a(given(c.rank, 7)), "op": "max"}, inputs(c, 7).max(0)),
    "scalar": lambda c, a: ("allreduce", {"x": a(np.array(c.rank))}, np.array(sum(range(c.size)))),
    "nothing": lambda c, a: ("allreduce", {"x": a(np.zeros(0))}, np.zeros(0)),
    "reduce": lambda c, a: (
        "reduce", {"x": a(given(c.rank, 5)), "root": last(c)}, inputs(c, 5).sum(0) if c.rank == last(c) else None
    ),
    "scan": lambda c, a: ("scan", {"x": a(given(c.rank, 5))}, inputs(c, 5)[: c.rank + 1].sum(0)),
    "exscan": lambda c, a: ("exscan", {"x": a(given(c.rank, 5))}, inputs(c, 5)[: c.rank].sum(0) if c.rank else None),
    "allgather": lambda c, a: ("allgather", {"x": a(given(c.rank, 2, 3))}, inputs(c, 2, 3)),
    "gather": lambda c, a: (
        "gather", {"x": a(given(c.rank, 4)), "root": last(c)}, inputs(c, 4) if c.rank == last(c) else None
    ),
    "reduce_scatter": lambda c, a: (
        "reduce_scatter", {"xs": a(given(c.rank, c.size, 3))}, inputs(c, c.size, 3).sum(0)[c.rank]
    ),
    "alltoall": lambda c, a: ("alltoall", {"xs": a(given(c.rank, c.size, 2))}, inputs(c, c.size, 2)[:, c.rank]),
    "allgatherv": lambda c, a: (
        "allgatherv", {"x": a(rows_of(c, c.rank)), "counts": range(1, c.size + 1)},
        np.concatenate([rows_of(c, rank) for rank in range(c.size)]),
    ),
    "gatherv": lambda c, a: (
        "gatherv", {"x": a(rows_of(c, c.rank)), "counts": range(1, c.size + 1)},
        np.concatenate([rows_of(c, rank) for rank in range(c.size)]) if c.rank == 0 else None,
    ),
    "reduce_scatterv": lambda c, a: (
        "reduce_scatterv", {"xs": a(triangle(c)), "counts": range(1, c.size + 1)},
        of_rank(c, sum(triangle(c) - c.rank + rank for rank in range(c.size))),
    ),
    "alltoallv": lambda c, a: (
        "alltoallv", {"xs": a(given(c.rank, c.size, 2)), "sendcounts": [1] * c.size, "recvcounts": [1] * c.size},
        inputs(c, c.size, 2)[:, c.rank],
    ),
}  # fmt: skip
calls = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def check(result: Any, like: Any, expected: Any) -> None:
    if expected is None:
        assert result is None
        return
    assert type(result) is type(like)
    np.testing.assert_array_equal(values(result), expected)
    if not isinstance(result, Frozen):
        assert result.dtype == like.dtype


@every
@calls
def test_the_result_is_an_array_of_the_same_library(comm: mpicoll.Communicator, make: Make, case: Case) -> None:
    method, arguments, expected = case(comm, make)
    x = arguments.get("x", arguments.get("xs"))
    before = values(x).copy()
    first = getattr(comm, method)(**arguments)
    check(first, x, expected)
    check(getattr(comm, method)(**arguments), x, expected)
    check(first, x, expected)  # the second call did not write to it
    np.testing.assert_array_equal(values(x), before)


@every
@calls
def test_calls_that_do_not_block_and_calls_that_are_bound(comm: mpicoll.Communicator, make: Make, case: Case) -> None:
    method, arguments, expected = case(comm, make)
    x = arguments.get("x", arguments.get("xs"))
    request = getattr(comm, f"i{method}")(**arguments)
    request.wait()
    check(request.result, x, expected)
    call = comm.bind(method, **arguments)
    results = [call(), call()]
    for result in results:
        check(result, x, expected)
    assert results[0] is None or results[0] is not results[1]


@every
def test_scatter(comm: mpicoll.Communicator, make: Make) -> None:
    """Only the root knows the shape, so the others give an array that can be written to."""
    xs = make(given(0, comm.size, 3))
    for method, options in (("scatter", {}), ("scatterv", {"counts": [1] * comm.size})):
        if comm.rank == 0:
            found = getattr(comm, method)(xs, root=0, **options)
            assert type(found) is type(xs)
        else:
            out = writable(xs)[:1]
            found = getattr(comm, method)(None, root=0, out=out, **options)
            assert found is out
        np.testing.assert_array_equal(values(found).ravel(), given(0, comm.size, 3)[comm.rank])


@every
def test_a_result_that_is_given_is_returned(comm: mpicoll.Communicator, make: Make) -> None:
    x = make(given(comm.rank, 4))
    out = writable(x)
    assert comm.allreduce(x, out=out) is out
    np.testing.assert_array_equal(values(out), inputs(comm, 4).sum(0))


@every
def test_bcast_and_messages_read_an_immutable_array(comm: mpicoll.Communicator, make: Make) -> None:
    x = make(given(0, 4))
    empty = np.zeros_like(writable(x))
    mine = x if comm.rank == 0 else empty
    assert comm.bcast(mine) is mine
    np.testing.assert_array_equal(values(mine), given(0, 4))
    if comm.size > 1:
        empty[...] = 0
        comm.sendrecv(x, (comm.rank + 1) % comm.size, empty, (comm.rank - 1) % comm.size)
        np.testing.assert_array_equal(values(empty), given(0, 4))


@every
def test_an_immutable_array_is_never_written_to(comm: mpicoll.Communicator, make: Make) -> None:
    x = make(given(comm.rank, 4))
    expected = r"expected an array that can be written to; given one that is read-only \(np.array makes a copy"
    with pytest.raises(ArgumentError, match=f"allreduce: x: {expected}"):
        comm.allreduce(x, out=x)
    with pytest.raises(ArgumentError, match=f"reduce: out: {expected}"):
        comm.reduce(writable(x), root=comm.rank, out=x)
    with pytest.raises(ArgumentError, match=f"recv: x: {expected}"):
        comm.recv(x, source=0)
    if comm.size > 1:
        with pytest.raises(ArgumentError, match=f"bcast: x: {expected}"):
            comm.bcast(x, root=(comm.rank + 1) % comm.size)
    np.testing.assert_array_equal(values(x), given(comm.rank, 4))


class Fresh:
    """An object that hands out new memory each time. Nobody but the one who asks holds it."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __dlpack__(self, **options: Any) -> Any:
        return np.full(200_000, self.value, np.float32).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def bound(comm: mpicoll.Communicator, operation: str, *given: Any, **named: Any) -> None:
    call = comm.bind(operation, *given, **named)
    others = [np.full(200_000, 3, np.float32) for _ in range(5)]  # they would get memory that was freed too early
    call()
    assert len(others) == 5


def received(comm: mpicoll.Communicator, y: Any, before: int, send: Callable[..., object], *given: object) -> None:
    request = comm.irecv(y, before)
    sent = send(*given)
    request.wait()
    if isinstance(sent, Request):
        sent.wait()


FRESH: dict[str, Callable[[mpicoll.Communicator, Any, int, int], object]] = {
    "isend": lambda comm, y, after, before: received(comm, y, before, comm.isend, Fresh(7), after),
    "bound send": lambda comm, y, after, before: received(comm, y, before, bound, comm, "send", Fresh(7), after),
    "sendrecv": lambda comm, y, after, before: comm.sendrecv(Fresh(7), after, y, before),
    "bound sendrecv": lambda comm, y, after, before: bound(comm, "sendrecv", Fresh(7), after, y, before),
    "allreduce": lambda comm, y, after, before: comm.allreduce(Fresh(7), "max", out=y),
    "bound allreduce": lambda comm, y, after, before: bound(comm, "allreduce", Fresh(7), "max", out=y),
    "iallreduce": lambda comm, y, after, before: comm.iallreduce(Fresh(7), "max", out=y).wait(),
}


@pytest.mark.processes
@pytest.mark.parametrize("call", FRESH)
def test_memory_that_is_handed_out_for_one_call(call: str) -> None:
    comm, y = mpicoll.Communicator(), np.zeros(200_000, np.float32)
    FRESH[call](comm, y, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
    comm.barrier()
    assert (y == 7).all()
