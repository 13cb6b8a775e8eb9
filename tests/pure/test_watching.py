"""What is known of calls that are under way, without a library that makes them."""

from __future__ import annotations

import threading
from functools import partial

from mpicoll.calls.choose import NODE
from mpicoll.supervise import watched
from mpicoll.supervise.record import CLOSED, Pending, Record, Recorder, Waits
from mpicoll.supervise.watched import LOOK, Watched
from mpicoll.watching.calls import Calls, UnderWay

PENDING = Pending("Irecv", "came", 0, "", "no message came")


def test_thousands_of_calls_under_way_are_looked_at_a_few_times_each() -> None:
    looks = 0

    def is_complete(thing: int) -> bool:
        nonlocal looks
        looks += 1
        return False

    calls, under_way = Calls(), UnderWay(is_complete)
    for number in range(10_000):
        under_way.begin(number, number, calls, PENDING)
    assert len(under_way) == 10_000
    assert 0 < looks < 30_000


def test_what_another_thread_waits_for_is_not_looked_at() -> None:
    looked: list[str] = []

    def is_complete(thing: str) -> bool:
        looked.append(thing)
        return False

    calls, under_way = Calls(), UnderWay(is_complete)
    for key, thing in enumerate(("waited for", "other")):
        under_way.begin(key, thing, calls, PENDING)
    under_way.forget_complete(under_way[0][2])
    assert looked == ["other"]
    assert under_way.has_messages(under_way[0][2])


def test_a_communicator_of_which_two_threads_make_calls_is_let_go() -> None:
    calls, record = Calls(), Record("barrier")
    assert calls.begin(record) is calls.recorder
    other = threading.Thread(target=lambda: refused.append(calls.begin(record)))
    refused: list[object] = []
    other.start()
    other.join()
    assert (refused, calls.recorder.state) == ([None], CLOSED)
    assert calls.begin(record) is None


def test_the_kernels_calls_have_the_name_that_the_watchers_know() -> None:
    assert watched._BY_KERNEL == NODE


def test_what_a_gpu_waits_for_counts_as_a_wait_until_it_is_complete() -> None:
    complete: set[int] = set()
    waits = Waits()
    watched_one = Watched("c", [0], Recorder(), waits, 600.0, False)
    for number in range(2):
        waits.follow((PENDING, float(number)), partial(complete.issuperset, {number}))
    watched_one.look()
    watched_one.look()
    assert watched_one.seconds == LOOK
    assert watched_one.status(None).message == "Irecv: no message came"
    complete.add(0)
    watched_one.look()
    assert [begun for _, begun in waits] == [1.0]
    waits.follow((PENDING, 2.0), partial(complete.issuperset, {2}))
    complete.update((1, 2))
    watched_one.look()
    assert not waits
    assert watched_one.seconds == 0
