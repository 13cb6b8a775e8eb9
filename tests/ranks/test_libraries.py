"""Arrays of other libraries than NumPy and torch: a call on one of them gives an array of its library.

JAX is tested where it is installed. Elsewhere, a library that is as strict stands in for it."""

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
from mpicoll.errors import ArgumentError
from tests.ranks.test_nonblocking import OPERATIONS


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
SERVED = [name for name in OPERATIONS if not name.startswith(("barrier", "bcast", "scatter"))]
every = pytest.mark.parametrize("make", KINDS)


def given(rank: int, *shape: int) -> np.ndarray[Any, Any]:
    """Small whole numbers, which every dtype holds exactly, and their sums, too."""
    return np.asarray(np.arange(np.prod(shape)).reshape(shape) % 5 + rank)


def check(result: Any, like: Any, expected: Any) -> None:
    if expected is None:
        assert result is None
        return
    assert type(result) is type(like)
    np.testing.assert_array_equal(values(result), expected)
    if not isinstance(result, Frozen):
        assert result.dtype == like.dtype


@every
@pytest.mark.parametrize("operation", SERVED)
def test_the_result_is_an_array_of_the_same_library(comm: mpicoll.Communicator, make: Make, operation: str) -> None:
    """Of calls that block or do not. None writes to the input, or to another call's result."""

    def arguments(made: Make) -> dict[str, Any]:
        of_numpy = OPERATIONS[operation](comm, lambda *shape: made(given(comm.rank, *shape)))
        return of_numpy | ({"op": "sum"} if operation == "reduce_scatter" else {})  # an average may be no whole number

    expected, ours = getattr(comm, operation)(**arguments(lambda x: x)), arguments(make)
    x = ours.get("x", ours.get("xs"))
    before = values(x).copy()
    request = getattr(comm, f"i{operation}")(**ours)
    results = [getattr(comm, operation)(**ours), getattr(comm, operation)(**ours)]
    request.wait()
    for result in (request.result, *results):
        check(result, x, expected)
    assert expected is None or len({id(result) for result in results}) == 2
    np.testing.assert_array_equal(values(x), before)


@every
def test_other_shapes_and_an_output_that_is_given(comm: mpicoll.Communicator, make: Make) -> None:
    for shape in ((), (0,), (3, 2)):
        x, expected = make(given(comm.rank, *shape)), sum(given(r, *shape) for r in range(comm.size))
        for algorithm in (None, "ring"):
            check(comm.allreduce(x, algorithm=algorithm), x, expected)
        out = writable(x)
        assert comm.allreduce(x, out=out) is out
        np.testing.assert_array_equal(values(out), expected)


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
def test_an_immutable_array_is_never_written_to(comm: mpicoll.Communicator, make: Make) -> None:
    x = make(given(comm.rank, 4))
    expected = r"expected an array that can be written to; given one that is read-only, or"
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
    mine = x if comm.rank == 0 else np.zeros_like(writable(x))
    assert comm.bcast(mine) is mine  # the root's is only read
    np.testing.assert_array_equal(values(mine), given(0, 4))
    before, came = (comm.rank - 1) % comm.size, np.zeros_like(writable(x))
    comm.sendrecv(x, (comm.rank + 1) % comm.size, came, before)
    np.testing.assert_array_equal(values(came), given(before, 4))


class Fresh:
    """An object that hands out new memory each time. Nobody but the one who asks holds it."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __dlpack__(self, **options: Any) -> Any:
        return np.full(200_000, self.value, np.float32).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


Begins = Callable[[mpicoll.Communicator, Any, int, int], list[Callable[[], object]]]
FRESH: dict[str, Begins] = {
    "isend": lambda comm, y, after, before: [comm.irecv(y, before).wait, comm.isend(Fresh(7), after).wait],
    "sendrecv": lambda comm, y, after, before: [lambda: comm.sendrecv(Fresh(7), after, y, before)],
    "allreduce": lambda comm, y, after, before: [lambda: comm.allreduce(Fresh(7), "max", out=y)],
    "iallreduce": lambda comm, y, after, before: [comm.iallreduce(Fresh(7), "max", out=y).wait],
}
"""Calls that begin, and what completes them."""


@pytest.mark.processes
@pytest.mark.parametrize("call", FRESH)
def test_memory_that_is_handed_out_for_one_call(comm: mpicoll.Communicator, call: str) -> None:
    y = np.zeros(200_000, np.float32)
    begun = FRESH[call](comm, y, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size)
    others = [np.full(200_000, 3, np.float32) for _ in range(5)]  # they would get memory that was freed too early
    for complete in begun:
        complete()
    comm.barrier()
    assert (y == 7).all()
    assert len(others) == 5
