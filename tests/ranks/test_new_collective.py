"""A collective that MPI does not have: a line of the table, an algorithm, and a method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll import Algorithm
from mpicoll.algorithms.collectives import COLLECTIVES, METHODS, Collective
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Copy, Place, Recv, Send, Steps, one
from mpicoll.communicator.repeated import repeated
from mpicoll.errors import ArgumentError

pytestmark = pytest.mark.mpi


class _Shift(Collective):
    def source(self, rank: int, size: int, root: int, block: int) -> tuple[range, int]:
        before = (rank - 1) % size
        return range(before, before + 1), block


@pytest.fixture(autouse=True)
def _shift(registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank r gets the array of rank r - 1."""
    table = _Shift("shift", None, "1", "1", None, False, 0, mpi=False)
    monkeypatch.setitem(COLLECTIVES, "shift", table)
    monkeypatch.setitem(METHODS, "shift", (table, False))
    mpicoll.register(Algorithm("shift", "neighbours", _neighbours))


def _neighbours(at: Place) -> Steps:
    """Each rank sends to the next one."""
    yield Send((at.rank + 1) % at.size, one(0), INPUT), Recv((at.rank - 1) % at.size, one(0), SCRATCH)
    yield (Copy(one(0), SCRATCH, OUTPUT),)


def _communicator() -> Any:
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
