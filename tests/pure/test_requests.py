"""What is under way, without any MPI: who may ask for it, what an error is told to, and what is left at the end."""

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


def test_what_a_thread_waits_for_is_not_tested() -> None:
    under_way, transfer = requests.InFlight(NeverRaised, 0), Invented()
    transfer.came = 4
    request = receive(under_way, transfer)
    thread = threading.Thread(target=request.wait)
    thread.start()
    transfer.waited_for.wait()
    request.look()
    assert not request.test()
    transfer.here.set()
    thread.join()
    assert request.test()


def test_what_went_wrong_is_told_to_who_asks() -> None:
    under_way, transfer = requests.InFlight(NeverRaised, 0), Invented()
    request = receive(under_way, transfer)
    transfer.came = 3
    transfer.here.set()
    request.look()  # in the course of another message
    assert request.done
    with pytest.raises(MessageError, match=r"irecv: expected 4 elements of float64 from rank 3; 3 arrived"):
        request.wait()
    request.wait()

    dropped = receive(under_way, transfer)
    del dropped
    with pytest.warns(RuntimeWarning, match="nobody has waited for this message: irecv: expected 4 elements"):
        under_way.let_go()


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
