"""Collectives that MPI does not have: a line of the table, an algorithm, and a method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll import Algorithm
from mpicoll.algorithms import find
from mpicoll.algorithms.collectives import COLLECTIVES, METHODS, Collective
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Copy, Place, Recv, Send, Steps, one
from mpicoll.communicator.repeated import repeated
from mpicoll.errors import ArgumentError

Communicator: Any = mpicoll.Communicator  # _collective is not among its types

pytestmark = pytest.mark.mpi


class _Shift(Collective):
    def source(self, rank: int, size: int, root: int, block: int) -> tuple[range, int]:
        before = (rank - 1) % size
        return range(before, before + 1), block


class _Own(Collective):
    def source(self, rank: int, size: int, root: int, block: int) -> tuple[range, int]:
        return range(rank, rank + 1), block


@pytest.fixture(autouse=True)
def _tables(registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds is gone after it."""
    for name in [f"{name}{v}" for name in ("shift", "own", "like") for v in ("", "v")]:
        monkeypatch.setitem(METHODS, name, METHODS["barrier"])
        monkeypatch.setitem(COLLECTIVES, name, COLLECTIVES["barrier"])


def _add(table: Collective, *algorithms: Algorithm) -> None:
    COLLECTIVES[table.name] = table
    METHODS[table.name], METHODS[f"{table.name}v"] = (table, False), (table, True)
    for each in algorithms:
        mpicoll.register(each)


def _neighbours(at: Place) -> Steps:
    """Each rank sends to the next one."""
    yield Send((at.rank + 1) % at.size, one(0), INPUT), Recv((at.rank - 1) % at.size, one(0), SCRATCH)
    yield (Copy(one(0), SCRATCH, OUTPUT),)


def _keep(at: Place) -> Steps:
    """Each rank gets its own blocks."""
    yield tuple(Copy(one(b), INPUT, OUTPUT) for b in range(at.size))


def _communicator() -> Any:
    _add(_Shift("shift", None, "1", "1", None, False, 0, mpi=False), Algorithm("shift", "neighbours", _neighbours))

    class WithShift(mpicoll.Communicator):
        @repeated
        def shift(self, x: Any, out: Any = None, algorithm: str | None = None) -> Any:
            return self._collective("shift", x, out, None, 0, algorithm)  # type: ignore[attr-defined]

        def ishift(self, x: Any) -> Any:
            return self._engine.begun("shift", x)

    return WithShift()


@pytest.mark.parametrize("n", [1, 1 << 18])
@pytest.mark.parametrize("algorithm", [None, "neighbours"])
def test_calls(n: int, algorithm: str | None) -> None:
    with _communicator() as comm:
        before = (comm.rank - 1) % comm.size
        for x in (np.empty(n), comm.empty(n)):
            for turn in range(4):
                x[:] = np.arange(n) + 10 * comm.rank + turn
                out = np.zeros(n)
                assert comm.shift(x, out, algorithm) is out
                assert (out == np.arange(n) + 10 * before + turn).all()
                made = comm.shift(x, algorithm=algorithm)
                assert made.shape == x.shape
                assert (made == out).all()
                request = comm.ishift(x)
                request.wait()
                assert (request.result == out).all()
                comm.shift(x, x, algorithm)
                assert (x == out).all()


def test_the_choice() -> None:
    with _communicator() as comm:
        comm.shift(np.zeros(4))
        assert comm.last_route.startswith("neighbours")
        for name in ("native", "node", "exchange"):
            with pytest.raises(ArgumentError, match="expected None or one of neighbours"):
                comm.shift(np.zeros(4), algorithm=name)


@pytest.mark.parametrize("name", ["own", "ownv"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("n", [4, 3000])
def test_the_kernel_does_not_take_one_for_an_alltoall(name: str, shared: bool, n: int) -> None:
    _add(_Own("own", None, "p", "p", None, False, 0, mpi=False), Algorithm("own", "keep", _keep, uneven=True))
    with Communicator() as comm:
        x, out = [(comm.empty if shared else np.empty)(n * comm.size) for _ in range(2)]
        counts: Any = [[n] * comm.size] * 2 if name == "ownv" else [None, None]
        for turn in range(3):
            x[:], out[:] = comm.rank + turn + np.arange(x.size), -1
            comm._collective(name, x, out, None, 0, None, *counts)
            assert (out == x).all()
            out[:] = -1
            comm._engine.begun(name, x, out, None, 0, None, *counts).wait()
            assert (out == x).all()


@pytest.mark.parametrize(
    ("of", "algorithm"), [("scan", "chain"), ("reduce_scatter", "ring"), ("bcast", "linear"), ("alltoall", "bruck")]
)
def test_the_proof_and_the_choice_know_it_by_its_line(of: str, algorithm: str) -> None:
    known = find(of, algorithm)
    assert known is not None
    _add(replace(COLLECTIVES[of], name="like", torch=None, mpi=False), replace(known, collective="like"))
    with Communicator() as comm:
        blocks = comm.size if COLLECTIVES[of].gives == "p" else 1
        x = np.arange(6.0 * blocks).reshape(blocks, 6) + comm.rank
        op = "sum" if COLLECTIVES[of].reduces else None
        found, y = comm._collective("like", x.copy(), None, op, 0, None), x.copy()
        assert comm.last_route.startswith(algorithm)
        assert (found == getattr(comm, of)(y)).all()
