"""The turns that the compared programs take."""

from __future__ import annotations

from collections import Counter

import pytest

from mpicoll.bench.measuring.timing import ROUNDS, _orders, _plan
from mpicoll.tune.rank import ROUNDS as ROUNDS_OF_TUNE


@pytest.mark.parametrize("runners", [1, 2, 3, 5])
def test_each_is_before_each_other_as_often_as_after_it(runners: int) -> None:
    seen = set()
    for seed in range(20):
        orders = [tuple(order) for order in _orders(runners, 6, seed)]
        assert all(sorted(order) == list(range(runners)) for order in orders)
        seen |= set(orders)
        before = Counter((a, b) for order in orders for i, a in enumerate(order) for b in order[i + 1 :])
        assert set(before.values()) <= {3}
    assert len(seen) > 1 or runners == 1


@pytest.mark.parametrize("limits", [ROUNDS, ROUNDS_OF_TUNE])
def test_the_rounds_are_even(limits: tuple[int, int]) -> None:
    for seconds in (0.01, 0.7, 0.9, 1.0, 100.0):
        rounds, calls = _plan([0.1, 0.003], seconds, limits)
        assert limits[0] <= rounds <= limits[1]
        assert rounds % 2 == 0
        assert min(calls) >= 1
