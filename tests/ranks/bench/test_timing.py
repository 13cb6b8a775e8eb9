"""The turns that the compared programs take."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from time import sleep

import pytest
from mpi4py import MPI

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.arrays.dtypes import DTYPES
from mpicoll.bench.cases import Case
from mpicoll.bench.memory import Arena
from mpicoll.bench.timing import ROUNDS, Runner, _orders, _plan, measure


@pytest.mark.parametrize("runners", [1, 2, 3, 5])
def test_each_is_before_each_other_as_often_as_after_it(runners: int) -> None:
    seen = set()
    for seed in range(20):
        orders = [tuple(order) for order in islice(_orders(runners, seed), 6)]
        assert all(sorted(order) == list(range(runners)) for order in orders)
        seen |= set(orders)
        before = Counter((a, b) for order in orders for i, a in enumerate(order) for b in order[i + 1 :])
        assert set(before.values()) <= {3}
    assert len(seen) > 1 or runners == 1


def test_the_rounds_are_even() -> None:
    for seconds in (0.01, 0.7, 0.9, 1.0, 100.0):
        rounds, calls = _plan([0.1, 0.003], seconds)
        assert ROUNDS[0] <= rounds <= ROUNDS[1]
        assert rounds % 2 == 0
        assert min(calls) >= 1


@pytest.mark.slow
def test_a_disturbed_beginning_does_not_leave_few_calls() -> None:
    world = MPI.COMM_WORLD
    pairs = Arena().buffers(
        Case(COLLECTIVES["barrier"], 0, DTYPES["uint8"], "sum", 0, world.rank, world.size, "out-of-place")
    )
    made = 0

    def call() -> None:
        nonlocal made
        made += 1
        if made <= 2:
            sleep(0.3)

    runner = Runner(pairs, [call] * len(pairs))
    measure(world, [runner], 0.3)
    assert len(runner.times) >= 12
    assert runner.times[0] < 300_000  # those of the beginning do not count
