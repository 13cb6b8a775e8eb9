"""What is asked of CUDA's driver to pin memory, on an invented driver that notes it. Needs no GPU."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mpicoll.machine import cuda
from mpicoll.machine.cuda import pinned


class Driver:
    """Answers 0, or what a test has put into ``answers`` for a function, one after another."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, list[int]] = {}
        self.pinned: dict[int, int] = {}

    def __getattr__(self, function: str) -> Any:
        def ask(*arguments: Any) -> int:
            self.asked.append(function)
            left = self.answers.get(function, [])
            answer = left.pop(0) if left else 0
            if answer == 0 and function == "cuMemHostRegister_v2":
                self.pinned[arguments[0].value] = arguments[1].value
            if answer == 0 and function == "cuMemHostUnregister":
                del self.pinned[arguments[0].value]
            return answer

        return ask


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr(cuda, "driver", lambda: made)
    monkeypatch.setattr(cuda, "_pinned_for_ever", [])
    cuda._primary_context.cache_clear()
    yield made
    cuda._primary_context.cache_clear()


def memory() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Of one and a half pages."""
    return np.zeros(6144, np.uint8)


def test_whole_pages_as_long_as_there_is_an_array(driver: Driver) -> None:
    given = memory()
    array = pinned(given, 0)[100:]
    assert driver.pinned == {given.ctypes.data: 8192}
    assert array.ctypes.data == given.ctypes.data + 100
    del array
    gc.collect()
    assert driver.pinned == {}


def test_a_refusal(driver: Driver) -> None:
    driver.answers["cuMemHostRegister_v2"] = [801]
    with pytest.raises(MemoryError, match="6144 bytes cannot be pinned \\(CUDA's error 801\\)"):
        pinned(memory(), 0)
    assert "cuMemHostUnregister" not in driver.asked


@pytest.mark.parametrize("function", ["cuMemHostRegister_v2", "cuMemHostUnregister"])
def test_a_thread_that_has_no_context(driver: Driver, function: str) -> None:
    driver.answers[function] = [201]
    array = pinned(memory(), 1)
    assert len(driver.pinned) == 1
    del array
    gc.collect()
    assert driver.pinned == {}
    at = driver.asked.index("cuCtxPushCurrent_v2")
    assert driver.asked[at + 1 : at + 3] == [function, "cuCtxPopCurrent_v2"]


def test_memory_that_stays_pinned_is_nobody_else_s(driver: Driver) -> None:
    driver.answers["cuMemHostUnregister"] = [999]
    given = memory()
    array = pinned(given, 0)
    address = given.ctypes.data
    del array, given
    gc.collect()
    [kept] = cuda._pinned_for_ever
    assert kept.ctypes.data == address


def test_a_forked_child_unpins_nothing(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    array = pinned(memory(), 0)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    del array
    gc.collect()
    assert len(driver.pinned) == 1
