"""The cache of plans."""

from __future__ import annotations

import pytest

from mpicoll.calls.plan import Plans


def test_the_oldest_plans_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plans, "LIMIT", 3)
    plans: Plans[int] = Plans()
    for number in range(7):
        plans.keep(f"call {number}", number)
    assert [*plans.values()] == [4, 5, 6]


def test_a_plan_that_is_kept_while_another_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a signal's handler, which may make calls."""
    monkeypatch.setattr(Plans, "LIMIT", 2)
    plans: Plans[int] = Plans()
    waits: list[int] = []

    class Key:
        def __hash__(self) -> int:
            if waits:
                plans.keep("meanwhile", waits.pop())
            return 1

    plans.keep(Key(), 0)
    plans.keep("second", 1)
    waits.append(2)
    plans.keep("third", 3)
    assert {2, 3} <= {*plans.values()}
