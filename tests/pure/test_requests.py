"""Receives under way, without any MPI: who may ask for one, and one that is given up."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mpicoll.communicator.engine import requests
from mpicoll.communicator.engine.message import Message
from mpicoll.errors import MessageError, TimeoutError
from mpicoll.fabrics.fabric import NeverRaised, Transfer
from mpicoll.supervise.messages import Ends
from mpicoll.supervise.record import Pending


class Invented(Transfer):
    """A message whose end the test decides."""

    def __init__(self) -> None:
        self.came: int | None = None
        self.here = threading.Event()
        self.waited_for = threading.Event()

    def start(self) -> None:
        """Nothing is to be done."""

    def wait(self, begun: None) -> None:
        self.waited_for.set()
        self.here.wait()

    def test(self, begun: None) -> bool:
        assert not self.waited_for.is_set() or self.here.is_set(), "tested while another thread waits for it"
        return self.here.is_set()

    def cancel(self, begun: object) -> bool:
        return True

    def source(self, begun: object = None) -> int:
        return 3

    def tag(self, begun: object) -> int:
        return 0

    def arrived(self, begun: object = None) -> int | None:
        return self.came


def receive(under_way: requests.InFlight, transfer: Transfer) -> requests.Request:
    pending = Pending.message("irecv", "came from rank 0 (tag 0)", 4, "float64", Ends([0], 0))
    return requests.Request(Message(pending, transfer, True, False, 32, True), object(), np.zeros(4), under_way)


def test_two_threads_wait_for_one_message() -> None:
    """No other one tests it meanwhile."""
    under_way, transfer = requests.InFlight(NeverRaised, 0), Invented()
    transfer.came = 4
    request = receive(under_way, transfer)
    ended: list[bool] = []

    def wait() -> None:
        request.wait()
        ended.append(request.done)

    waiting = [threading.Thread(target=wait) for _ in range(2)]
    for thread in waiting:
        thread.start()
    transfer.waited_for.wait()
    request.look()
    assert not request.test()
    transfer.here.set()
    for thread in waiting:
        thread.join()
    assert ended == [True, True]
    assert request.test()


def test_a_wait_that_is_given_up_alone() -> None:
    """The receive goes on, unlike one whose communicator has a time limit."""
    under_way, transfer = requests.InFlight(NeverRaised, 0), Invented()
    request = receive(under_way, transfer)
    assert not request.ends_within(0.001)
    transfer.came = 3
    transfer.here.set()
    with pytest.raises(MessageError, match="3 arrived"):
        request.ends_within(60.0)
    assert request.ends_within(0.0)


def test_a_message_that_cannot_come_any_more() -> None:
    def another_came() -> None:
        raise MessageError("irecv: another message came")

    under_way = requests.InFlight(NeverRaised, 0)
    under_way.timeout = 60.0
    request = receive(under_way, Invented())
    request._message.meanwhile = another_came
    with pytest.raises(MessageError, match="another message came"):
        request.wait()
    assert request.done
    request.wait()


@pytest.mark.parametrize("taken", [False, True], ids=["while it is given up", "just before"])
def test_a_message_that_comes_when_time_is_up(taken: bool) -> None:
    """It is taken as a whole, or not at all: never is a call complete whose array was not written."""

    class AtTheEnd(Invented):
        def test(self, begun: None) -> bool:
            self.came = 4 if taken else None
            return taken

        def cancel(self, begun: object) -> bool:
            return False

    under_way = requests.InFlight(NeverRaised, 0)
    under_way.timeout = 0.01
    finished: list[bool] = []
    request = receive(under_way, AtTheEnd())
    request._finish = lambda: finished.append(True)
    if taken:
        request.wait()
    else:
        with pytest.raises(TimeoutError, match=r"no message came from rank 0 \(tag 0\) within 0.01 s"):
            request.wait()
    assert finished == [True] * taken


class TooLate(Invented):
    """A message that has come when the receive is given up, and not before."""

    def cancel(self, begun: object) -> bool:
        self.came = 4
        self.here.set()
        return False


def test_what_comes_while_it_is_given_up_was_received() -> None:
    written: list[bool] = []
    request = receive(requests.InFlight(NeverRaised, 0), TooLate())
    request._finish = lambda: written.append(True)
    assert not request.cancel()
    assert (request.source, request.done, written) == (3, True, [True])
