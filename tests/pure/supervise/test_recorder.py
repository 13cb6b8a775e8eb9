"""The recorder: its rings, the hash of so many calls, and what another thread reads meanwhile."""

from __future__ import annotations

import _thread
import random
import sys
import threading
import time
from collections.abc import Callable

import pytest

from mpicoll.errors import StateError
from mpicoll.supervise.record import LENGTH, Record, Recorder

RECORDS = [Record(f"call {i}") for i in range(7)]


def make(recorder: Recorder, record: Record) -> None:
    recorder.begin(record)
    recorder.under_way = False


def made(records: list[Record]) -> Recorder:
    recorder = Recorder()
    for record in records:
        make(recorder, record)
    return recorder


def some(count: int, seed: int = 0) -> list[Record]:
    return random.Random(seed).choices(RECORDS, k=count)


BORDERS = [1, LENGTH - 1, LENGTH, LENGTH + 1, 2 * LENGTH - 1, 2 * LENGTH, 2 * LENGTH + 1, 5 * LENGTH]


@pytest.mark.parametrize("count", BORDERS)
def test_equal_calls_alone_have_equal_hashes(count: int) -> None:
    """However much further one of the ranks is, as long as it knows those calls."""
    calls = some(count)
    found = made(calls).hash(count)
    for further in (0, 1, LENGTH - 1, LENGTH, 5 * LENGTH):
        assert made([*calls, *some(further, seed=1)]).hash(count) == found
    for i in {0, count // 2, count - 1}:
        assert made([*calls[:i], Record("another call"), *calls[i + 1 :]]).hash(count) != found
    assert count == 1 or made([calls[0], RECORDS[0], RECORDS[1]]).hash(3) != made([calls[0], *RECORDS[1::-1]]).hash(3)
    assert made(calls).hash(5 * LENGTH + 1) is None


def test_hashes_are_forgotten_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpicoll.supervise.record._RINGS", 3)
    recorder = made(some(10 * LENGTH))
    known = [calls for calls in range(10 * LENGTH + 2) if recorder.hash(calls) is not None]
    assert known == [*range(6 * LENGTH, 10 * LENGTH + 1)]


@pytest.mark.parametrize("count", [0, *BORDERS])
def test_what_is_kept(count: int) -> None:
    """The current ring, and the one before."""
    calls = some(count)
    recorder = made(calls)
    kept = recorder.calls()
    assert recorder.begun == count
    assert [each.record for each in kept] == calls[count - len(kept) :]
    assert [each.number for each in kept] == [*range(count - len(kept), count)]
    assert len(kept) >= min(count, LENGTH)
    assert [each.number for each in recorder.calls(count - 1)] == [count - 1] * (count > 0)


@pytest.mark.parametrize("count", [1, LENGTH, LENGTH + 1])
def test_a_call_that_is_taken_back(count: int) -> None:
    calls = some(count)
    recorder = made(calls)
    recorder.begin(Record("wrong"))
    recorder.retract()
    assert (recorder.begun, recorder.hash(count)) == (count, made(calls).hash(count))
    make(recorder, RECORDS[0])
    assert recorder.hash(count + 1) == made([*calls, RECORDS[0]]).hash(count + 1)


def test_one_call_at_a_time() -> None:
    """Also if two threads make their calls at the same line."""
    recorder, refused, begun, over = Recorder(), list[str](), threading.Event(), threading.Event()

    def call(record: Record) -> None:
        try:
            recorder.begin(record)
            begun.set()
            over.wait()
        except StateError as e:
            refused.append(str(e))
            over.set()

    threads = [threading.Thread(target=call, args=[record]) for record in RECORDS[:2]]
    threads[0].start()
    begun.wait()
    threads[1].start()
    for thread in threads:
        thread.join()
    (why,) = refused
    assert why.startswith("call 1: this communicator is in another call now: call 0, at test_recorder.py:")
    assert recorder.begun == 1


def test_a_call_from_c() -> None:
    """As where atexit calls a method: there is no frame of Python's at all."""
    recorder = Recorder()
    _thread.start_new_thread(recorder.begin, (RECORDS[0],))
    deadline = time.monotonic() + 30
    while not recorder.begun and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [made.record for made in recorder.calls()] == RECORDS[:1]


class Caller:
    """What the recorder knows a communicator by."""

    def __init__(self) -> None:
        self.recorder = Recorder()

    def call(self, meanwhile: Callable[[], object] = int) -> int:
        self.recorder.begin(RECORDS[0])
        meanwhile()
        self.recorder.under_way = False
        return self.recorder.begun


def test_a_call_within_a_call_of_the_same_thread() -> None:
    """Also through a call of another communicator."""
    caller, other = Caller(), Caller()
    assert caller.call(lambda: caller.call()) == 2
    assert caller.call(lambda: other.call(lambda: caller.call())) == 4
    assert other.call() == 2


@pytest.mark.slow
def test_a_thread_reads_while_calls_are_made() -> None:
    """What it reads of so many calls is what it would have read when they were the last ones."""
    calls = some(200 * LENGTH)
    whole = [made(calls[: i * LENGTH]).hash(i * LENGTH) for i in range(1, 201)]
    recorder = Recorder()
    wrong: list[object] = []
    read: list[object] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            begun = recorder.begun
            kept = recorder.calls()
            wrong.extend(each for each in kept if each.record is not calls[each.number])
            if begun >= LENGTH:
                read.append(found := recorder.hash(begun - begun % LENGTH))
                wrong.extend([found] * (found not in whole))

    threads = [threading.Thread(target=look) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # Python lets each thread run for 5 ms otherwise
    for thread in threads:
        thread.start()
    for i, record in enumerate(calls):
        make(recorder, record)
        while i == 2 * LENGTH and not read and all(thread.is_alive() for thread in threads):
            time.sleep(0.001)  # until they look
    done.set()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert read
    assert not wrong
