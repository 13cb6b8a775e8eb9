"""Vectors beyond the count of one MPI call: all collectives with a small limit, and some with the real one."""

from __future__ import annotations

import numpy as np
import pytest

import mpicoll
from mpicoll.calls import choose
from tests.devices.checks import check
from tests.ranks import test_communicator, test_random, test_scheduled
from tests.ranks.random_calls import UNEVEN

pytestmark = pytest.mark.sizes(2)


@pytest.mark.slow
def test_everything_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "MAX_COUNT", 100)
    monkeypatch.setattr(test_random, "DRAWS", 200)
    world = mpicoll.Communicator()
    half = world.split(world.rank % 2)
    test_random.test_random_calls([world, half, world])


def test_uneven_blocks_and_messages_in_pieces(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "MAX_COUNT", 4)
    for collective in UNEVEN:
        test_scheduled.test_uneven_blocks_by_every_algorithm_that_takes_them(comm, collective)
    for collective in ("gather", "allgather", "scatter", "reduce_scatter"):
        for n in (1, 40):
            check(comm, test_scheduled.ON_HOST, collective, None, "float64", "sum", (n,), "plain")
    monkeypatch.setattr(choose, "MAX_COUNT", 100)
    test_communicator.test_messages_around_a_ring(comm)


@pytest.mark.slow
@pytest.mark.mpi(min_size=2)
def test_more_than_2_to_the_31_elements() -> None:
    comm = mpicoll.Communicator()
    if comm.size > 2:
        pytest.skip("the memory is there for two ranks")
    n = 2**31 + 12
    x = np.full(n, 0, np.uint8)  # one array for all calls: the first touch of so much memory takes seconds
    marks = [0, 2**31 - 2, 2**31 - 1, 2**31, n - 1]
    x[marks] = [1 + comm.rank + i for i in range(5)]
    comm.allreduce(x, "max", out=x)
    assert list(x[marks]) == [2 + i for i in range(5)]
    assert np.count_nonzero(x) == 5
    x[marks] = [10 * comm.rank + i for i in range(5)]
    comm.bcast(x, 1)
    assert list(x[marks]) == [10 + i for i in range(5)]
    blocks = x.reshape(2, n // 2)  # in place: each rank has its block, and gets the other one
    blocks[:] = 0
    blocks[comm.rank, [0, -1]] = 20 + comm.rank
    comm.allgather(blocks[comm.rank], out=blocks)
    assert blocks[:, [0, -1]].tolist() == [[20, 20], [21, 21]]
    assert np.count_nonzero(blocks) == 4
    comm.free()
