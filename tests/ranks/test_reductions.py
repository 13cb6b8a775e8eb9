"""Reductions that random draws do not reach: rounding, NaNs, integers, factors, and operations by mpi4py's names."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicoll
from mpicoll import Op
from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.fabrics.routes import exchange
from mpicoll.launch.mpi_init import check_arithmetic
from tests.devices.checks import check
from tests.ranks.test_scheduled import ON_HOST, OnHost

pytestmark = pytest.mark.sizes(1, 2, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [5, 5000, 2_000_003])
def test_16_bit_sums_are_rounded_once(comm: mpicoll.Communicator, dtype: torch.dtype, n: int) -> None:
    given = [torch.randn(n, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(comm.size)]
    exact = torch.zeros(n)
    for x in given:
        exact += x.float()
    mine = given[comm.rank].clone()
    comm.allreduce(mine, out=mine)
    assert torch.equal(mine, exact.to(dtype))
    everyone = comm.allgather(mine.view(torch.int16))
    assert all(torch.equal(everyone[r], everyone[0]) for r in range(comm.size))


@pytest.mark.parametrize("name", ["SUM", "PROD", "MIN", "MAX", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR"])
def test_operations_by_their_names_in_mpi4py(comm: mpicoll.Communicator, name: str) -> None:
    op = getattr(MPI, name)
    x = np.array([comm.rank + 1, 2 * comm.rank, 1])
    for given in (x, torch.from_numpy(x)):
        for collective in (comm.allreduce, comm.scan, comm.reduce):
            expected: Any = collective(given, name.lower())
            result: Any = collective(given, op)
            assert (result is None and expected is None) or (result == expected).all()
    with mpicoll.Communicator() as fresh:
        for _ in range(2):  # an operation of mpi4py's cannot be hashed, but its plan is found
            fresh.allreduce(x, op, out=x)
        assert len(fresh._engine.plans) == 1


@pytest.mark.parametrize(
    "factor", [Fraction(1, 4), Decimal("0.25"), np.float32(0.25), np.complex64(0.25), np.longdouble(0.25), 2**70]
)
def test_factors_of_every_kind_of_number(comm: mpicoll.Communicator, factor: Any) -> None:
    dtype = np.complex64 if isinstance(factor, np.complex64) else np.float32
    x = np.full(3, 4, dtype)
    for algorithm in (None, "native", "ring"):
        y = comm.allreduce(x, Op.premul_sum(factor), algorithm=algorithm)
        assert (y == 4 * comm.size * complex(factor)).all()


def test_factors_that_are_equal_but_not_the_same(comm: mpicoll.Communicator) -> None:
    x = np.ones(1)
    for factor in (0.0, -0.0, 0.0):
        x[0] = 1
        comm.allreduce(x, Op.premul_sum(factor), out=x)
        assert np.signbit(x[0]) == np.signbit(factor)


def test_a_library_that_computes_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MPICH 4.0.2 does on Debian."""
    check_arithmetic()
    monkeypatch.setattr(MPI, "MIN", MPI.MAX)
    with pytest.raises(LaunchError, match="computes wrongly: to it the minimum of the unsigned integers 200 and 1 is"):
        check_arithmetic()


VIEWS: dict[str, Any] = {
    "x conjugated": lambda u: (u.conj(), u),
    "out conjugated": lambda u: (u, u.conj()),
    "x negated": lambda u: (u.conj().imag, u.imag),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("operation", ["allreduce", "reduce", "scan"])
def test_a_view_that_torch_conjugates_is_not_its_memory(comm: mpicoll.Communicator, view: str, operation: str) -> None:
    """Taken for a call in place, it gave the reduction of what lies there."""
    u = torch.tensor([1 + 2j, 3 - 1j])
    comm.scan(u.conj(), out=u.conj())  # both are the same view
    assert (u == (comm.rank + 1) * torch.tensor([1 + 2j, 3 - 1j])).all()
    x, out = VIEWS[view](torch.tensor([1 + 2j, 3 - 1j]))
    if operation == "reduce" and comm.rank:
        return  # only the root has an output
    with pytest.raises(ArgumentError, match=f"{operation}: out: expected memory that does not overlap x's"):
        getattr(comm, operation)(x, out=out)


# -- 16-bit floats that travel as float32 --


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("n", [0, 1, 1001, 70_000])
@pytest.mark.parametrize("op", ["sum", "prod", "avg", "premul_sum"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floats_that_travel_as_float32(comm: mpicoll.Communicator, dtype: str, op: str, n: int) -> None:
    tensors: Any = OnHost("torch")
    for collective in ("allreduce", "reduce", "reduce_scatter"):
        check(comm, tensors, collective, "wide", dtype, op, (n,), "plain", comm.size - 1)
        assert comm.last_route == "wide"


@pytest.mark.mpi(min_size=3)
def test_a_wide_sum_is_rounded_once(comm: mpicoll.Communicator) -> None:
    """256 + 1 + 1 is 258, which bfloat16 has. 256 + 1 is not: it would be rounded to 256."""
    x = torch.full((5,), {0: 256.0, 1: 1.0, 2: 1.0}.get(comm.rank, 0.0), dtype=torch.bfloat16)
    y: Any = comm.allreduce(x, algorithm="wide")
    assert (y == 258.0).all()


@pytest.mark.mpi(min_size=2)
def test_two_wide_plans_that_take_turns(comm: mpicoll.Communicator) -> None:
    """They use the same memory for their float32 values."""
    x, y = torch.ones(300, dtype=torch.bfloat16), torch.ones(70, dtype=torch.bfloat16)
    for _ in range(3):
        for each in (x, y):
            comm.allreduce(each, out=each, algorithm="wide")
    assert (x == comm.size**3).all()
    assert (y == comm.size**3).all()


@pytest.mark.mpi(min_size=2)
def test_wide_serves_sums_and_products_of_16_bit_floats_alone(comm: mpicoll.Communicator) -> None:
    with pytest.raises(ArgumentError, match=r"sum of float32 \(wide is for sums and products of 16-bit"):
        comm.allreduce(np.ones(3, np.float32), algorithm="wide")
    with pytest.raises(ArgumentError, match=r"min of float16 \(wide is"):  # an MPI library's minimum may lose a NaN
        comm.allreduce(np.ones(3, np.float16), "min", algorithm="wide")
    with pytest.raises(ArgumentError, match="given 'wide'"):
        comm.scan(np.ones(3, np.float16), algorithm="wide")


# -- the exchange --


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange has one partner at a time, and slices of a few elements: several rounds of both are needed."""
    monkeypatch.setattr(exchange, "PARTNERS", 1)
    monkeypatch.setattr(exchange, "SHORT", 0)
    monkeypatch.setattr(exchange, "CHUNK", 256)
    monkeypatch.setattr(exchange, "SLICE", 8)


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("count", [1, 2, 1001])
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", "scan"])
def test_an_exchange_with_one_partner_at_a_time(comm: mpicoll.Communicator, collective: str, count: int) -> None:
    for root in range(comm.size):
        check(comm, ON_HOST, collective, "exchange", "float32", "max", (count,), "plain", root)
