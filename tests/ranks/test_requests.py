"""Requests of messages: what they hold and let go, what a program drops, and what cannot be given up."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.communicator.engine import requests
from mpicoll.communicator.engine.message import OVERHEAD
from mpicoll.errors import MessageError, StateError


def ring(comm: mpicoll.Communicator, nbytes: int, turns: int) -> list[Any]:
    """Each rank sends so many arrays and lets them go, all of which arrive; weak references to them."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = []
    for i in range(turns):
        x = np.full(nbytes, i % 100, np.uint8)
        sent.append(weakref.ref(x))
        y = np.zeros_like(x)
        request = comm.irecv(y, before)
        comm.isend(x, after)
        del x
        request.wait()
        assert y[0] == y[-1] == i % 100
    return sent


def test_what_is_sent_is_let_go_soon_after_it_has_arrived(comm: mpicoll.Communicator) -> None:
    nbytes, turns = requests.LEAST // 4, 12
    ring(comm, nbytes, turns)  # what other tests had under way may permit more for a while
    sent = ring(comm, nbytes, turns)
    comm.barrier()
    gc.collect()
    assert sum(x() is not None for x in sent) <= 5  # as many as LEAST permits, and the last


def test_short_messages_are_let_go_too(comm: mpicoll.Communicator) -> None:
    most = requests.LEAST // OVERHEAD
    sent = ring(comm, 8, 3 * most)
    gc.collect()
    assert sum(x() is not None for x in sent) <= most + 1


@pytest.mark.parametrize("how", ["freed", "dropped"])
@pytest.mark.processes
def test_what_was_sent_on_a_communicator_that_is_gone_is_let_go(comm: mpicoll.Communicator, how: str) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    alive = []
    for _ in range(10):
        part = comm.split(0)
        x = np.ones(requests.LEAST // 4, np.uint8)
        part.isend(x, after)
        part.recv(np.empty_like(x), before)
        if how == "freed":
            part.free()
        alive.append(weakref.ref(x))
    assert sum(x() is not None for x in alive) <= 5  # as many as LEAST permits, and the last


@pytest.mark.slow
def test_a_receive_that_was_dropped_is_let_go_once_it_is_complete(comm: mpicoll.Communicator) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    y = np.zeros(1000)
    dropped = weakref.ref(y)
    comm.irecv(y, before, tag=5)
    del y
    gc.collect()
    assert dropped() is not None  # MPI writes to it
    comm.send(np.ones(1000), after, tag=5)
    comm.barrier()
    ring(comm, requests.LEAST // 2, 4)
    gc.collect()
    assert dropped() is None


def test_a_request_that_is_complete_holds_no_array(comm: mpicoll.Communicator) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, y = np.ones(10), np.zeros(10)
    held = [weakref.ref(x), weakref.ref(y)]
    pending = [comm.irecv(y, before), comm.isend(x, after)]
    del x, y
    for request in pending:
        request.wait()
    assert [each() for each in held] == [None, None]
    assert all(request.test() for request in pending)


def test_another_thread_may_complete_what_has_just_begun(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is to be done at its end is known by then."""

    class Looked(set[requests.Request]):
        def add(self, request: requests.Request) -> None:
            super().add(request)
            request.look()

    y = np.zeros((3, 2))
    sent = comm.isend(np.ones(3), comm.rank)
    monkeypatch.setattr(requests, "open_requests", Looked(requests.open_requests))
    received = comm.irecv(y[:, 0], comm.rank)  # through a copy
    received.wait()
    sent.wait()
    assert y.tolist() == [[1, 0]] * 3


def test_what_is_sent_cannot_be_given_up(comm: mpicoll.Communicator) -> None:
    """Open MPI would wait for ever for a message that nobody takes."""
    x, y = np.ones(1 << 18), np.zeros(1 << 18)
    request = comm.isend(x, (comm.rank + 1) % comm.size)
    if not request.test() and comm.size > 1:
        with pytest.raises(StateError, match="cancel: only a receive can be given up"):
            request.cancel()
        assert not request.test()
    comm.barrier()  # before this, nobody takes it
    comm.recv(y)
    request.wait()


@pytest.mark.mpi(min_size=2)
def test_requests_of_one_message_again_and_again(comm: mpicoll.Communicator) -> None:
    """One that the program has is not given out again, nor is one whose message was too short."""
    to, of = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, y = np.zeros(2), np.empty(2)
    kept = []
    for turn in range(8):
        x[:] = 10 * turn + comm.rank
        coming = comm.irecv(y, of)
        assert not coming.done or coming.test()
        going = comm.isend(x, to)
        coming.wait()
        going.wait()
        assert (coming.source, coming.tag, going.source) == (of, 0, None)
        assert y.tolist() == [10 * turn + of] * 2
        if turn % 3 == 2:
            kept += [coming, going]
            assert len({*map(id, kept)}) == len(kept)
    for turn in range(4):
        failed = comm.irecv(y, of)
        comm.isend(x[: 1 + turn % 2], to).wait()
        if turn % 2 == 0:
            with pytest.raises(MessageError, match="expected 2 elements"):
                failed.wait()
        failed.wait()
        assert failed.done
    assert all(each.test() for each in kept)


@pytest.mark.mpi(min_size=2)
def test_a_dropped_request_is_no_other_one(comm: mpicoll.Communicator) -> None:
    """Where something refers to it weakly, the kernel does not give it out again. And of one that failed, which nobody
    has waited for, the program hears at once."""
    to, of = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, y = np.ones(2), np.empty(2)
    notes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    for turn in range(4):
        coming, going = comm.irecv(y, of), comm.isend(x, to)
        assert notes.get(coming, notes.get(going)) is None
        notes[coming] = notes[going] = turn
        coming.wait()
        going.wait()
        del coming, going
        failed = comm.irecv(y, of)
        comm.isend(x[:1], to).wait()
        while not failed.done:
            failed.look()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            del failed
            gc.collect()  # a Request of Python's may be in a cycle
        assert "nobody has waited for this message" in str(said[0].message)
