"""How a rank waits: beside a program that computes, it sleeps soon."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from mpicoll.machine import backoff
from mpicoll.machine.backoff import FEW, TURN, WAITS, YIELDS, Backoff


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], tuple[int, int]]:
    """Lets a rank wait until it has slept once, where a yield lasts so many seconds. Gives the yields and sleeps."""
    counts, now = {"yield": 0, "sleep": 0}, [0.0]
    lasts = [0.0]

    def passes(what: str, seconds: float) -> None:
        counts[what] += 1
        now[0] += seconds

    # Threads that other tests have begun sleep, too, by the real clock.
    clock = SimpleNamespace(sleep=partial(passes, "sleep"), monotonic=lambda: now[0])
    monkeypatch.setattr(backoff, "time", clock)
    monkeypatch.setattr(backoff, "os", SimpleNamespace(sched_yield=lambda: passes("yield", lasts[0])))
    monkeypatch.setattr(Backoff, "_soon", 0)

    def wait(seconds: float) -> tuple[int, int]:
        lasts[0] = seconds
        counts.update({"yield": 0, "sleep": 0})
        waiting = Backoff(10.0)
        while not counts["sleep"]:
            assert waiting.wait()
        return counts["yield"], counts["sleep"]

    return wait


def test_a_rank_that_has_lost_the_core_for_long_sleeps_soon(waits: Callable[[float], tuple[int, int]]) -> None:
    """So it does in its next waits. Then it yields again before it sleeps."""
    soon, long = TURN / 10, 2 * TURN
    assert waits(soon) == waits(soon) == (YIELDS, 1)
    assert waits(long) == (1, 1)
    assert [waits(soon) for _ in range(WAITS)] == [(FEW, 1)] * WAITS
    assert waits(soon) == (YIELDS, 1)
