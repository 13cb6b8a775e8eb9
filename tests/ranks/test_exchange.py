"""The exchange's messages, with so few at a time and so short chunks that several rounds of both are needed."""

from __future__ import annotations

import numpy as np
import pytest

import mpicoll
from mpicoll.fabrics.routes import exchange

pytestmark = pytest.mark.sizes(1, 2, 4)


@pytest.fixture
def comm(monkeypatch: pytest.MonkeyPatch) -> mpicoll.Communicator:
    """Its plans are bound while a rank has one partner at a time, and a slice a few elements."""
    monkeypatch.setattr(exchange, "PARTNERS", 1)
    monkeypatch.setattr(exchange, "SHORT", 0)
    monkeypatch.setattr(exchange, "CHUNK", 256)
    monkeypatch.setattr(exchange, "SLICE", 8)
    return mpicoll.Communicator()


def given(rank: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng([7, rank]).integers(-1000, 1000, count).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 1001])
def test_every_rank_has_every_other_as_a_partner(comm: mpicoll.Communicator, count: int) -> None:
    rank, size = comm.rank, comm.size
    everybodys = [given(r, count) for r in range(size)]
    expected = np.max(everybodys, 0)
    assert np.array_equal(comm.allreduce(given(rank, count), op="max", algorithm="exchange"), expected)
    for root in range(size):
        found = comm.reduce(given(rank, count), op="max", root=root, algorithm="exchange")
        assert (found is None) == (rank != root)
        assert found is None or np.array_equal(found, expected)
    blocks = np.stack([x + rank for x in everybodys])
    mine = comm.reduce_scatter(blocks, op="max", algorithm="exchange")
    assert np.array_equal(mine, everybodys[rank] + size - 1)
    up_to_mine = comm.scan(given(rank, count), op="max", algorithm="exchange")
    assert np.array_equal(up_to_mine, np.max(everybodys[: rank + 1], 0))
