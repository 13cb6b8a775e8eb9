"""16-bit floats that travel as float32: they are rounded once, and every rank has the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mpicoll
from mpicoll import Op
from mpicoll.errors import ArgumentError
from tests import oracle


@pytest.fixture(scope="module")
def comm() -> mpicoll.Communicator:
    return mpicoll.Communicator()


@pytest.mark.parametrize("n", [0, 1, 1001, 70_000])
@pytest.mark.parametrize("op", ["sum", "prod", "avg"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_against_the_oracle(comm: mpicoll.Communicator, dtype: str, op: str, n: int) -> None:
    kind = getattr(torch, dtype)
    fill = np.random.default_rng(n)
    for collective in ("allreduce", "reduce", "reduce_scatter"):
        shape = (comm.size, n) if collective == "reduce_scatter" else (n,)
        inputs = [oracle.values(fill, dtype, shape, op) for _ in range(comm.size)]
        expected = oracle.outcome(collective, inputs, op, comm.size - 1, dtype)[comm.rank]
        x = torch.from_numpy(inputs[comm.rank].copy()).to(kind)
        root = {"root": comm.size - 1} if collective == "reduce" else {}
        given: Any = x.clone()
        result = getattr(comm, collective)(given, op=op, algorithm="wide", **root)
        assert comm.last_route == "wide"
        assert torch.equal(given.nan_to_num(7), x.nan_to_num(7))
        if expected is not None:
            np.testing.assert_array_equal(result.float().numpy().ravel(), expected)


@pytest.mark.mpi(min_size=3)
def test_a_sum_is_rounded_once(comm: mpicoll.Communicator) -> None:
    """256 + 1 + 1 is 258, which bfloat16 has. 256 + 1 is not: it would be rounded to 256."""
    x = torch.full((5,), {0: 256.0, 1: 1.0, 2: 1.0}.get(comm.rank, 0.0), dtype=torch.bfloat16)
    y: Any = comm.allreduce(x, algorithm="wide")
    assert (y == 258.0).all()


def test_in_place(comm: mpicoll.Communicator) -> None:
    x = torch.full((comm.size, 9), float(comm.rank + 1), dtype=torch.float16)
    total = comm.size * (comm.size + 1) / 2
    mine: Any = x[comm.rank]
    comm.reduce_scatter(x, out=mine, algorithm="wide")
    assert (mine == total).all()
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    assert (x[others] == comm.rank + 1).all()
    y = torch.full((9,), float(comm.rank + 1), dtype=torch.float16)
    comm.allreduce(y, out=y, algorithm="wide")
    assert (y == total).all()
    comm.allreduce(y, Op.premul_sum(0.5), out=y, algorithm="wide")
    assert (y == total * comm.size / 2).all()


def test_two_plans_that_take_turns(comm: mpicoll.Communicator) -> None:
    """They use the same memory for their float32 values."""
    x, y = torch.ones(300, dtype=torch.bfloat16), torch.ones(70, dtype=torch.bfloat16)
    calls = [comm.bind("allreduce", each, out=each, algorithm="wide") for each in (x, y)]
    for _ in range(3):
        for call in calls:
            call()
    assert (x == comm.size**3).all()
    assert (y == comm.size**3).all()


def test_it_serves_sums_and_products_of_16_bit_floats_alone(comm: mpicoll.Communicator) -> None:
    with pytest.raises(ArgumentError, match=r"sum of float32 \(wide is for sums and products of 16-bit"):
        comm.allreduce(np.ones(3, np.float32), algorithm="wide")
    with pytest.raises(ArgumentError, match=r"min of float16 \(wide is"):  # an MPI library's minimum may lose a NaN
        comm.allreduce(np.ones(3, np.float16), "min", algorithm="wide")
    with pytest.raises(ArgumentError, match="given 'wide'"):
        comm.scan(np.ones(3, np.float16), algorithm="wide")
