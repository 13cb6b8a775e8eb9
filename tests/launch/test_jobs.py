"""What is late fails, but not before a slow machine has had its time."""

from __future__ import annotations

import time

import pytest

from tests.launch import jobs


def test_a_slow_machine_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "DEADLINE", 0.2)
    monkeypatch.setattr(jobs, "slowness", lambda: 10.0)
    began = time.monotonic()
    jobs.until(lambda: time.monotonic() > began + 1, "a second has passed")
    with pytest.raises(pytest.fail.Exception, match="not within 2 s: it is true"):
        jobs.until(lambda: False, "it is true")


def test_no_machine_has_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "EMPTY", 1e9)
    assert jobs.slowness() == 1.0
    monkeypatch.setattr(jobs, "EMPTY", 1e-9)
    assert jobs.slowness() > 1.0
