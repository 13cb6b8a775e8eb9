"""check_nan: a NaN is found before data moves, on the rank that gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mpicoll
from mpicoll.errors import ArgumentError, StateError

CHECKS = ("off", "watch")
"""With the full check the other ranks would wait for the rank that raises."""
Call = Callable[[mpicoll.Communicator, Any], Any]
GIVES: dict[str, Call] = {
    "allreduce": lambda c, x: c.allreduce(x),
    "allreduce in place": lambda c, x: c.allreduce(x, out=x),
    "scan": lambda c, x: c.scan(x),
    "allgather": lambda c, x: c.allgather(x),
    "allgatherv": lambda c, x: c.allgatherv(x, [len(x)] * c.size),
    "alltoall": lambda c, x: c.alltoall(x),
    "reduce_scatter": lambda c, x: c.reduce_scatter(x, out=np.empty(x.size // c.size, x.dtype)),
}


def numbers(size: int, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
    return np.ones(6 * size, dtype)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("call", GIVES)
def test_a_nan_is_named(call: str, check: str) -> None:
    comm = mpicoll.Communicator(check=check, check_nan=True)
    GIVES[call](comm, numbers(comm.size))
    x = numbers(comm.size)
    x[5] = np.nan
    named = "xs" if call in ("alltoall", "reduce_scatter") else "x"
    with pytest.raises(
        ArgumentError, match=rf": {named}: expected no NaN, .* given NaN at index 5 on rank {comm.rank}$"
    ):
        GIVES[call](comm, x)
    with pytest.raises(StateError, match="was refused on this rank, so its ranks may be at different calls"):
        comm.barrier()


@pytest.mark.parametrize("dtype", [n for n in dir(torch) if n.startswith("float8")])
def test_bytes_that_are_nans(dtype: str) -> None:
    """torch says of each of the 256 bytes whether it is a NaN."""
    of = getattr(torch, dtype)
    every = torch.arange(256, dtype=torch.uint8).view(of)
    nans = every.float().isnan()
    assert nans.any()
    comm = mpicoll.Communicator(check_nan=True)
    comm.allgather(every[~nans])
    for at in [*nans.nonzero()]:
        each = mpicoll.Communicator(check_nan=True)
        x = torch.zeros(3, dtype=torch.uint8)
        x[2] = int(at)
        with pytest.raises(ArgumentError, match="NaN at index 2"):
            each.allgather(x.view(of))


def test_a_nan_in_a_half_of_a_complex32() -> None:
    comm = mpicoll.Communicator(check_nan=True)
    halves = torch.ones(12, dtype=torch.float16)
    comm.allgather(halves.view(torch.complex32))
    halves[7] = float("nan")
    with pytest.raises(ArgumentError, match="NaN at index 3"):
        comm.allgather(halves.view(torch.complex32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_every_dtype_that_has_nans(dtype: str) -> None:
    comm = mpicoll.Communicator(check_nan=True)
    x = torch.ones(100_000, dtype=getattr(torch, dtype))
    comm.allreduce(x)
    x[70_001] = float("nan")
    with pytest.raises(ArgumentError, match="NaN at index 70001"):
        comm.allreduce(x)


def test_a_nan_that_comes_into_a_known_array() -> None:
    """The plan of a call is kept, and looks again."""
    comm = mpicoll.Communicator(check_nan=True)
    x = numbers(comm.size)
    for _ in range(3):
        comm.allreduce(x, "max", out=x)
    x[0] = np.nan
    with pytest.raises(ArgumentError, match="NaN at index 0"):
        comm.allreduce(x, "max", out=x)


def test_an_array_with_gaps() -> None:
    comm = mpicoll.Communicator(check_nan=True)
    x = np.ones((4, 6))
    x[2, 3] = np.nan
    with pytest.raises(ArgumentError, match="NaN at index 5"):
        comm.allreduce(x[:, ::3])


def test_own_block_of_the_output() -> None:
    """A NaN in what will be overwritten is none of the rank's input."""
    with mpicoll.Communicator(check_nan=True) as comm:
        out = np.full((comm.size, 3), np.nan)
        out[comm.rank] = comm.rank
        comm.allgather(out[comm.rank], out=out)
        assert (out == np.arange(comm.size)[:, None]).all()


def test_what_a_rank_does_not_give() -> None:
    with mpicoll.Communicator(check_nan=True) as comm:
        x = np.full(3, np.nan if comm.rank else 1.0)
        comm.bcast(x)
        assert (x == 1).all()


def test_integers_have_none() -> None:
    with mpicoll.Communicator(check_nan=True) as comm:
        assert comm.allreduce(np.ones(2, np.int32))[0] == comm.size


@pytest.mark.parametrize("dtype", [">f4", "longdouble", ">c16", "clongdouble"])
def test_a_nan_of_numbers_that_mpicoll_only_moves(dtype: str) -> None:
    comm = mpicoll.Communicator(check_nan=True)
    x = np.ones(8, dtype)
    comm.allgather(x)
    x[3] = np.nan
    with pytest.raises(ArgumentError, match=f"allgather: x: expected no NaN.*NaN at index 3 on rank {comm.rank}"):
        comm.allgather(x)


def test_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_CHECK_NAN", "1")
    x = np.full(3, np.nan)
    with mpicoll.Communicator(check_nan=False) as comm:
        comm.allreduce(x)
    comm = mpicoll.Communicator()
    part = comm.split(0)
    assert part is not None
    for each in (part, comm):
        with pytest.raises(ArgumentError, match="allreduce: x: expected no NaN"):
            each.allreduce(x)


def test_no_setting() -> None:
    with pytest.raises(ArgumentError, match="Communicator: check_nan: expected True, False or None; given 1"):
        mpicoll.Communicator(check_nan=1)  # type: ignore[arg-type]
