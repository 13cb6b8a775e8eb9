"""What is late fails, but not before a slow machine has had its time."""

from __future__ import annotations

import os

import pytest

from tests.jobs import jobs
from tests.processes import plain_environment

pytestmark = pytest.mark.any_mpi


class Clock:
    """Time that passes while somebody sleeps, and else stands still."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_slow_machine_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(jobs, "time", clock)
    monkeypatch.setattr(jobs, "slowness", lambda: 10.0)
    jobs.until(lambda: clock.now > 5 * jobs.DEADLINE, "much time has passed")
    with pytest.raises(pytest.fail.Exception, match="not within 900 s: it is true"):
        jobs.until(lambda: False, "it is true")


def test_what_tests_inherit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they pass does not depend on how a developer's Python behaves."""
    assert plain_environment() == dict(os.environ)
    before = dict(os.environ)
    for name in ("PYTHONUNBUFFERED", "PYTHONOPTIMIZE", "PYTHONWARNINGS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert plain_environment() == {**before, "PYTHONPATH": "/somewhere"}


def test_no_machine_has_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "EMPTY", 1e9)
    assert jobs.slowness() == 1.0
    monkeypatch.setattr(jobs, "EMPTY", 1e-9)
    assert jobs.slowness() > 1.0
