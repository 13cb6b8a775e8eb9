"""Which threads of a rank, and which functions that signals call, may make calls while its main thread waits."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest

from mpicoll.supervise import sites
from mpicoll.supervise.sites import frames_now, is_alone


def outermost(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may have left threads. When one of them ends, a thread of this test may get its number."""
    before = {outermost(frame) for frame in frames_now().values()}
    monkeypatch.setattr(
        sites, "frames_now", lambda: {k: v for k, v in frames_now().items() if outermost(v) not in before}
    )


class Until:
    """Threads of a test, and what ends them."""

    def __init__(self) -> None:
        self.over, self.stack = threading.Event(), ExitStack()

    def start(self, run: Callable[..., object], *given: object) -> None:
        thread = threading.Thread(target=run, args=given)
        thread.start()
        self.stack.callback(thread.join)


@pytest.fixture
def until() -> Iterator[Until]:
    it = Until()
    yield it
    it.over.set()
    it.stack.close()


def becomes(expected: bool) -> bool:
    """Whether it becomes so. A thread may need a moment to come where it waits."""
    deadline = time.monotonic() + 30
    while is_alone() != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_alone() == expected


def run_until(it: Until) -> None:
    while not it.over.is_set():
        time.sleep(0.01)


def of_file(file: str) -> Callable[[Until], object]:
    """A function that waits for some time, in this file."""
    made: dict[str, Any] = {}
    exec(compile("def run(it):\n    it.over.wait(600)", file, "exec"), made)
    return made["run"]  # type: ignore[no-any-return]


WAITS: dict[str, tuple[Callable[[Until], object], bool]] = {
    "for another thread": (lambda it: it.over.wait(), True),
    "for some time": (lambda it: it.over.wait(600), False),
    "for nothing": (run_until, False),
    "of the DataLoader": (of_file("/env/torch/utils/data/_utils/pin_memory.py"), True),
    "of tqdm": (of_file("/env/tqdm/_monitor.py"), True),
    "of the program": (of_file("/env/a.py"), False),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_thread_that_waits(name: str, until: Until) -> None:
    """While all threads wait for each other, none of them makes a call."""
    wait, expected = WAITS[name]
    until.start(wait, until)
    assert becomes(expected)


def test_an_executor(until: Until) -> None:
    with ThreadPoolExecutor(2) as executor:
        executor.submit(int).result()
        assert becomes(True)
        executor.submit(until.over.wait, 600)
        assert becomes(False)
        until.over.set()


def of_library(inner: object = None) -> Callable[..., object]:
    """A function of a library's that calls ``inner`` if that is one, as torch's DataLoader has it for SIGCHLD."""
    made: dict[str, Any] = {}
    exec(compile("def make(inner):\n    return lambda *_: inner and inner()", signal.__file__, "exec"), made)
    return made["make"](inner)  # type: ignore[no-any-return]


HANDLERS: dict[str, tuple[signal.Signals, Any, bool]] = {
    "Python's own of SIGINT": (signal.SIGINT, signal.default_int_handler, True),
    "Python's own of another signal": (signal.SIGALRM, signal.default_int_handler, False),
    "the program's": (signal.SIGALRM, lambda *_: None, False),
    "a library's": (signal.SIGCHLD, of_library(), True),
    "a library's that calls the program's": (signal.SIGCHLD, of_library(lambda: None), False),
    "a library's that calls a library's": (signal.SIGCHLD, of_library(of_library()), True),
    "an object of the program's": (signal.SIGALRM, type("Handler", (), {"__call__": lambda *_: None})(), False),
}


@pytest.mark.parametrize("name", HANDLERS)
def test_what_a_signal_calls(name: str) -> None:
    number, handler, expected = HANDLERS[name]
    before = signal.signal(number, handler)
    try:
        assert is_alone() == expected
    finally:
        signal.signal(number, before)
