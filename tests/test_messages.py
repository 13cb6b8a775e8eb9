"""Messages under way: their tags, whose memory they hold and for how long, and who may ask for them."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.communicator import requests
from mpicoll.errors import MessageError

MPI_TAGS = 32767
"""The least that MPI guarantees."""


@pytest.fixture
def comm() -> mpicoll.Communicator:
    return mpicoll.Communicator()


def parts(comm: mpicoll.Communicator) -> list[mpicoll.Communicator]:
    """Communicators that were made of others in every way there is."""
    split, subset = comm.split(0), comm.subset(range(comm.size))
    assert split is not None
    assert subset is not None
    of_mpi = MPI.COMM_WORLD.Split(0, MPI.COMM_WORLD.rank)
    over = mpicoll.Communicator(of_mpi)
    of_mpi.Free()
    return [comm, split, subset, comm.node, split.node, over]


def test_tags_on_every_communicator(comm: mpicoll.Communicator) -> None:
    for part in parts(comm):
        after, before = (part.rank + 1) % part.size, (part.rank - 1) % part.size
        for tag in (0, 1, MPI_TAGS):
            y = part.sendrecv(np.array([tag]), after, np.zeros(1, int), before, tag, tag)
            assert y[0] == tag


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
    sent = ring(comm, nbytes, turns)
    comm.barrier()
    gc.collect()
    assert sum(x() is not None for x in sent) <= 5  # as many as LEAST permits, and the last


def test_short_messages_are_let_go_too(comm: mpicoll.Communicator) -> None:
    most = requests.LEAST // requests.OVERHEAD
    sent = ring(comm, 8, 3 * most)
    gc.collect()
    assert sum(x() is not None for x in sent) <= most + 1


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


@pytest.mark.mpi(min_size=2)
def test_two_threads_with_a_communicator_each(comm: mpicoll.Communicator) -> None:
    """One waits for long messages, while the other holds, and drops, hundreds of its own."""
    if not comm.any_thread:
        pytest.skip("needs MPI_THREAD_MULTIPLE")
    here, there = comm.split(0), comm.split(0)
    assert here is not None
    assert there is not None
    long, turns, many = np.ones(1 << 20, np.uint8), 400, 4000
    failures: list[BaseException] = []

    def talk() -> None:
        try:
            for _ in range(turns):
                if comm.rank == 0:
                    here.send(long, 1)
                elif comm.rank == 1:
                    here.recv(np.empty_like(long), 0)
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=talk)
    thread.start()
    if comm.rank == 0:
        pending = [there.isend(np.full(1, i), 1) for i in range(many)]
        for request in pending:
            request.wait()
    elif comm.rank == 1:
        y = np.zeros(1, int)
        assert [int(there.recv(y, 0)[0]) for _ in range(many)] == list(range(many))
    thread.join()
    assert failures == []


class Transfer:
    """A message whose end the test decides."""

    source: int | None = 3
    arrived: int | None = None

    def __init__(self) -> None:
        self.here = threading.Event()
        self.waited_for = threading.Event()

    def wait(self) -> None:
        self.waited_for.set()
        self.here.wait()

    def test(self) -> bool:
        assert not self.waited_for.is_set() or self.here.is_set(), "tested while another thread waits for it"
        return self.here.is_set()

    def cancel(self) -> bool:
        return True


def receive(under_way: requests.UnderWay, transfer: Any, finish: Callable[[], None] | None = None) -> requests.Request:
    from mpicoll.arrays.buffers import as_buffer

    room = as_buffer(np.zeros(4), "irecv", "x")
    return requests.Request("irecv", transfer, under_way, room, True, "came from rank 0 (tag 0)", finish)


def test_what_a_thread_waits_for_is_not_tested() -> None:
    under_way, transfer = requests.UnderWay(()), Transfer()
    transfer.arrived = 4
    request = receive(under_way, transfer)
    thread = threading.Thread(target=request.wait)
    thread.start()
    transfer.waited_for.wait()
    under_way.let_go()
    assert not request.test()
    transfer.here.set()
    thread.join()
    assert request.test()


def test_what_went_wrong_is_told_to_who_asks() -> None:
    under_way, transfer = requests.UnderWay(()), Transfer()
    request = receive(under_way, transfer)
    transfer.arrived = 3
    transfer.here.set()
    under_way.let_go()  # in the course of another message
    assert request.done
    with pytest.raises(MessageError, match=r"irecv: expected 4 elements of float64 from rank 3; 3 arrived"):
        request.wait()
    request.wait()

    dropped = receive(under_way, transfer)
    under_way.let_go()
    with pytest.warns(RuntimeWarning, match="nobody has waited for this message: irecv: expected 4 elements"):
        del dropped


@pytest.mark.mpi(min_size=2)
@pytest.mark.processes
def test_a_receive_that_a_signal_interrupts_as_it_ends(comm: mpicoll.Communicator) -> None:
    """MPI forgets a message that it has found to be complete: what it said of it must not be lost."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if comm.rank == 0:
        x = np.zeros(1000)
        request = comm.irecv(x, 1)
        before = signal.signal(signal.SIGALRM, interrupt)

        def wait() -> None:
            comm.send_object(os.getpid(), 1)
            request.wait()  # the handler runs once MPI's wait has returned

        try:
            with pytest.raises(KeyboardInterrupt):
                wait()
        finally:
            signal.signal(signal.SIGALRM, before)
        request.wait()
        assert request.source == 1
        assert x.all()
    elif comm.rank == 1:
        process = comm.recv_object(0)
        time.sleep(0.3)  # in which rank 0 comes to its wait
        os.kill(process, signal.SIGALRM)
        comm.send(np.ones(1000), 0)
    comm.barrier()


@pytest.mark.parametrize("taken", [False, True], ids=["while it is given up", "just before"])
def test_a_message_that_comes_when_time_is_up(taken: bool) -> None:
    """It is taken as a whole, or not at all: never is a call complete whose array was not written."""

    class AtTheEnd(Transfer):
        def test(self) -> bool:
            self.source, self.arrived = (0, 4) if taken else (None, None)
            return taken

        def cancel(self) -> bool:
            return False

    under_way = requests.UnderWay(())
    under_way.timeout = 0.01
    finished: list[bool] = []
    request = receive(under_way, AtTheEnd(), lambda: finished.append(True))
    if taken:
        request.wait()
    else:
        with pytest.raises(TimeoutError, match=r"no message came from rank 0 \(tag 0\) within 0.01 s"):
            request.wait()
    assert finished == [True] * taken
