"""What is under way, without any MPI: who may ask for it, what an error is told to, and what is left at the end."""

from __future__ import annotations

import gc
import threading
from weakref import WeakValueDictionary

import numpy as np
import pytest

from mpicoll.communicator.engine import masked_thread, requests, unfinished
from mpicoll.communicator.engine.message import Message
from mpicoll.errors import MessageError, TimeoutError
from mpicoll.fabrics.fabric import NeverRaised, Transfer
from mpicoll.supervise.messages import Ends
from mpicoll.supervise.record import Pending
from mpicoll.supervise.watched import GIVES, TAKES


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


def test_which_messages_are_under_way_at_the_end() -> None:
    """What a rank may still give tells others that they may wait for it."""
    under_way, transfer = requests.InFlight(NeverRaised, 0), Invented()
    taken = receive(under_way, transfer)
    assert unfinished.has_messages(True, None) == TAKES
    assert taken in unfinished._unfinished
    pending = Pending.message("isend", "was taken by rank 0 (tag 0)", 4, "float64", Ends([], None, [0], 0))
    message = Message(pending, Invented(), False, False, 32, True)
    given = requests.Request(message, object(), np.zeros(4), under_way)
    assert unfinished.has_messages(True, None) == GIVES | TAKES
    transfer.came = 4
    transfer.here.set()
    assert unfinished.has_messages(True, None) == GIVES
    assert taken.done
    assert taken not in unfinished._unfinished
    given._end()
    assert unfinished.has_messages(True, None) == 0


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


def test_two_threads_wait_for_one_message() -> None:
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
    transfer.here.set()
    for thread in waiting:
        thread.join()
    assert ended == [True, True]


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


def test_what_the_program_has_frozen_or_dropped_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is complete."""
    monkeypatch.setattr(requests, "open_requests", set())
    under_way, (frozen, dropped) = requests.InFlight(NeverRaised, 0), (Invented(), Invented())
    frozen.came = dropped.came = 4
    request = receive(under_way, frozen)
    gc.freeze()
    assert unfinished.has_messages(False, None)
    assert not unfinished.has_messages(False, request._since)
    receive(under_way, dropped)
    assert unfinished.has_messages(False, request._since)
    dropped.here.set()
    under_way.let_go()
    assert not unfinished.has_messages(False, request._since)
    frozen.here.set()
    request.wait()
    assert not unfinished.has_messages(False, None)
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # what is imported, as before


@pytest.mark.parametrize("is_begun_by_all", [True, False])
def test_a_collective_at_the_end_of_the_program(
    is_begun_by_all: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Some looks later it is complete, if all ranks have begun it."""

    class Slow(Invented):
        def test(self, begun: None) -> bool:
            self.looks += 1
            return is_begun_by_all and self.looks > 2

        looks = 0

    monkeypatch.setattr(unfinished, "_SECONDS", 0.01)
    monkeypatch.setattr(requests, "open_requests", set())
    monkeypatch.setattr(requests, "all_in_flight", WeakValueDictionary())
    monkeypatch.setattr(unfinished, "kernel", None)  # it would move no more messages
    monkeypatch.setattr(masked_thread, "_over", False)  # this sets it, and from then on all other threads stop
    pending = Pending("iallreduce", "iallreduce", 4, "float64", "it is not complete")
    message = Message(pending, Slow(), False, False, 32, True)
    request = requests.Request(message, object(), np.zeros(4), requests.InFlight(NeverRaised, 0))
    monkeypatch.setattr(unfinished, "_unfinished", [request])
    unfinished.tell()
    said = "mpicoll: rank 0 is at its end and has calls under way. iallreduce: it is not complete\n"
    assert capfd.readouterr().err == ("" if is_begun_by_all else said)


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
