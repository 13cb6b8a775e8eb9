"""What is under way: how a program waits for a message, and who keeps the memory of those that it lets go.

Whatever was begun stays in a set until it is complete, with its memory: MPI reads or writes that, also when the program
has dropped the request."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary

from mpicoll.communicator.engine import kinds
from mpicoll.communicator.engine.masked_thread import MAIN, backoff
from mpicoll.communicator.engine.message import Message
from mpicoll.errors import MessageError, MpicollError, StateError, TimeoutError
from mpicoll.fabrics.fabric import NeverRaised
from mpicoll.launch import lifecycle
from mpicoll.node.loaded import kernel
from mpicoll.supervise.record import Begun, Pending, Waits

LEAST = 16 << 20  # bytes that are begun before the program looks whether what it has dropped is complete

Finish = Callable[[], Any]
"""What is to be done when it has come: to write it where it belongs. It returns the request's result."""


class InFlight:
    """What one communicator has begun, and what must be known to wait for it."""

    def __init__(self, failure: type[Exception], rank: int) -> None:
        self.failure, self.rank = failure, rank
        self.lost = ""  # why nothing can be waited for any more, empty while it can
        self.by_mpi = failure is not NeverRaised
        self.any_thread = False  # whether a thread of mpicoll's may look at what the program has begun
        self.timeout: float | None = None  # the seconds that a program waits for a message, None if it waits for ever
        self.timed_out: Callable[[str], object] = str  # told why, when a message did not come in time
        self.loss: Callable[[str, BaseException], MpicollError | None] = lambda *_: None
        """The error of an operation that the fabric has ended because ranks were lost; None if that is not why."""
        self.compare: Callable[[], object] = lambda: None
        """Ends the job if the ranks' calls differ: the likely reason where a collective fails."""
        self.begin_message: Callable[[Pending], object] = lambda _: None  # told of all that is begun
        self.waits = Waits()
        self.budget = _of_mpi if self.by_mpi else [LEAST]
        """The bytes that may be begun before the next look at what is complete. All that goes through MPI has one
        budget: a program may drop a communicator, and what it has begun on that."""
        lifecycle.watch(self)
        all_in_flight[id(self)] = self

    def finalise(self) -> None:
        """MPI is about to end: no message can be waited for any more."""
        self.lost = "MPI was finalised"

    def abandon(self, why: str) -> None:
        """This process may not call MPI, or the program gives up what it has begun."""
        self.lost = why

    def complete(self) -> None:
        """Complete the collectives: Open MPI crashes where their communicator is freed before. Collective."""
        for request in [*open_requests]:
            if request._under_way is self and not request.is_message():
                request.complete()

    def let_go(self) -> None:
        """Let go what is complete by now. The rest holds no more than ``LEAST``, or twice what is really under way."""
        for request in self._of_budget():
            request.look()
        self.budget[0] = max(LEAST, sum(request._message.nbytes for request in self._of_budget()))

    def _of_budget(self) -> list[Request]:
        return [each for each in [*open_requests] if each._under_way.budget is self.budget and not each._under_way.lost]

    def error(self, message: Message, array: object, e: BaseException) -> MpicollError:
        lost = self.loss(message.pending.operation, e)
        if lost is None:
            return message.failed(e)
        hold_back(array)  # MPI may still write to it
        return lost


all_in_flight: WeakValueDictionary[int, InFlight] = WeakValueDictionary()
open_requests: set[Request] = set()  # all that is begun and not complete. The watcher's thread may read it at any time
_of_mpi = [LEAST]
_held_back: list[object] = []


def hold_back(arrays: object) -> None:
    """Keep arrays to which something may still be written, or what holds them, whatever the program does with them."""
    _held_back.append(arrays)


class _PlainFields:
    """What a request keeps. The kernel has a type of the same interface, of which it makes those of its messages."""

    __slots__ = (
        "_array", "_begun", "_failed", "_finish", "_message", "_since", "_turn", "_under_way", "done", "result"
    )  # fmt: skip

    _message: Message
    _under_way: InFlight
    _array: object  # MPI knows its address alone
    _turn: list[Any]
    """What stands for it in the fabric. Whoever takes this asks MPI: two threads may not wait for one request, or test
    it, at once."""
    _begun: Any  # the same, once it is complete
    _failed: MpicollError | None
    _finish: Finish | None
    _since: Begun
    done: bool
    """Whether it is complete, or has failed."""
    result: Any
    """What a collective returns: where its result is when it is complete. None for a message."""

    complete: Callable[[], None]
    _raise: Callable[[], None]
    _unheard: Callable[[], None]

    def wait(self) -> None:
        """Return when the message has arrived, or when the array that is sent may be overwritten.

        Raises MessageError if what arrived is longer or shorter than the array, or if MPI reports an error; the first
        call that finds it raises it, and later ones do not. Raises StateError in a process that was forked. With
        ``check="full"``, raises TimeoutError after the communicator's ``timeout``, which closes the communicator. An
        array that was to be sent must not be changed then: the message may still be taken."""
        self.complete()
        if self._failed is not None:
            self._raise()

    def __del__(self) -> None:
        if self._failed is not None:
            self._unheard()


if TYPE_CHECKING:
    _Fields = _PlainFields
else:
    _Fields = _PlainFields if kernel is None else kernel.Request


class Request(_Fields):
    """Something under way. Its array must not be used until :meth:`wait` has returned or :meth:`test` is True.

    Several threads may use one request. While one of them waits, :meth:`test` is False for the others."""

    __slots__ = ("__weakref__",)

    def __init__(
        self,
        message: Message,
        begun: Any,
        array: object,
        under_way: InFlight,
        finish: Finish | None = None,
        result: Any = None,
    ) -> None:
        self._message, self._under_way = message, under_way
        self._array, self._turn = array, [begun]
        self._begun = self._failed = None
        self._finish, self.done, self.result = finish, False, result
        self._since = message.pending, monotonic()
        under_way.begin_message(message.pending)
        budget = under_way.budget
        budget[0] -= message.nbytes
        if budget[0] < 0:
            under_way.let_go()
        open_requests.add(self)

    @property
    def source(self) -> int | None:
        """The rank that sent a received message, once that is here. None until then, and for all else."""
        return None if self._begun is None else self._message.transfer.source(self._begun)

    @property
    def tag(self) -> int | None:
        """The tag of a received message, once that is here. None until then, and for all else."""
        if self._begun is None:
            return None
        tag = self._message.transfer.tag(self._begun)
        return kinds.of_program(tag) if self._message.kind else tag

    def complete(self) -> None:
        """Return when it is complete, or has failed: whoever waits for it gets its error."""
        if self._under_way.lost:
            self._check_not_lost()
        under_way, wait = self._under_way, self._since
        waits = under_way.waits
        waits.append(wait)
        try:
            if under_way.timeout is not None:
                self._wait_in_time(under_way.timeout)
            elif get_ident() != MAIN and under_way.by_mpi and self._message.by_library:
                self._wait_in_time(float("inf"))
            elif not self.done:
                self._wait()
        finally:
            waits.remove(wait)

    def _wait(self) -> None:
        try:
            begun = self._turn.pop()
        except IndexError:
            self._wait_for_other()
            return
        try:
            if not self.done:
                self._message.transfer.wait(begun)
                self._complete(begun)
        except (self._under_way.failure, MpicollError) as e:
            if self._message.receives and not self._message.by_library:
                self._message.transfer.cancel(begun)  # else it would take what comes later
            self._fail(e)
        finally:
            self._turn.append(begun)

    def _wait_for_other(self) -> None:
        its = backoff(float("inf"))
        while not self.done and its.wait():
            self.look()

    def _wait_in_time(self, seconds: float) -> None:
        its, about = backoff(seconds, self._message.meanwhile), self._message.pending
        while not self.done:
            self.look()
            if self.done:
                return
            try:
                lasts = its.wait()
            except MessageError as e:
                if self.cancel():  # else it came at the last moment, and was taken as any other
                    self._failed = e
                return
            if not lasts:
                why = f"{about.missing} within {seconds:g} s"
                if self._message.receives and not self.cancel() and self.source is not None:
                    return  # it came at the last moment, too
                self._under_way.timed_out(f"{about.operation}: {why}")
                error = TimeoutError(f"{about.operation}: {why}")
                if not self.done:  # an array that is sent may still be taken
                    raise error
                self._failed = error
                return

    def test(self) -> bool:
        """Return whether it is complete, without waiting. Raises as :meth:`wait` does."""
        self._check_not_lost()
        if not self.done:
            self.look()
            if not self.done:
                return False
            self._under_way.waits.is_complete(self._since)
        self._raise()
        return True

    def ends_within(self, seconds: float) -> bool:
        """Wait for it, but not longer than that. Return whether it is complete. Raises as :meth:`wait` does."""
        its = backoff(seconds)
        while not self.test():
            if not its.wait():
                return False
        return True

    def cancel(self) -> bool:
        """Give up receiving. The array is not written to afterwards.

        Returns False if the message has arrived already. Raises as :meth:`wait` does, and StateError for what cannot be
        given up: a message that is sent, and a collective."""
        self._check_not_lost()
        if not self.is_message():
            raise StateError("cancel: a collective cannot be given up, because other ranks take part in it")
        given_up = False

        def give_up(begun: Any) -> None:
            nonlocal given_up
            self._ask(begun)
            if not self.done:
                given_up = self._message.transfer.cancel(begun)
                if not given_up:
                    self._ask(begun)  # it has come, as any other
                if not self.done:
                    self._end()

        while not self.done:
            if not self.look(give_up):
                self._wait_for_other()
        self._raise()
        return given_up

    def look(self, ask: Callable[[Any], None] | None = None) -> bool:
        """See whether it is complete, or ``ask`` MPI something else, unless another thread does so now. Whether none
        does. An error is kept for :meth:`wait` to raise."""
        if self.done:
            return True
        try:
            begun = self._turn.pop()
        except IndexError:
            return False
        try:
            (ask or self._ask)(begun)
        except self._under_way.failure as e:
            self._fail(e)
        finally:
            self._turn.append(begun)
        return True

    def _ask(self, begun: Any) -> None:
        """Complete it if it has arrived."""
        try:
            if not self.done and self._message.transfer.test(begun):
                self._complete(begun)
        except (self._under_way.failure, MpicollError) as e:
            self._fail(e)

    def _complete(self, begun: Any) -> None:
        """It has arrived. What was received must have the array's length."""
        message = self._message
        if message.receives:
            self._begun = begun
            arrived = message.transfer.arrived(begun)
            if message.kind and not kinds.is_kind(tag := message.transfer.tag(begun), message.kind):
                self._failed = message.wrong_kind(tag, message.transfer.source(begun))
            elif arrived != message.count:
                self._failed = message.wrong(arrived, message.transfer.source(begun))
        if self._finish is not None and self._failed is None:
            self.result = self._finish()
        self._array = self._finish = None  # this is _end in line: a call would cost as much as the rest
        self.done = True
        open_requests.discard(self)

    def _fail(self, e: Exception) -> None:
        if not self.is_message() and not (isinstance(e, MpicollError) and not isinstance(e, MessageError)):
            self._under_way.compare()
        if isinstance(e, MpicollError):
            self._failed = e
        else:
            self._failed = self._under_way.error(self._message, self._array, e)
            self._failed.__cause__ = e
        if not (self._message.by_library and self.is_message()):
            hold_back(self._array)  # something may still be written there, or read
        self._end()

    def _end(self) -> None:
        self._array = self._finish = None
        self.done = True
        open_requests.discard(self)

    def _check_not_lost(self) -> None:
        if why := self._under_way.lost:
            raise StateError(f"{self._message.pending.operation}: this message cannot be waited for: {why}")

    def _raise(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Request cannot be pickled or copied: it is under way in this process")

    def _unheard(self) -> None:
        warnings.warn(f"nobody has waited for this message: {self._failed}", RuntimeWarning, stacklevel=1)

    def is_message(self) -> bool:
        return self._message.pending.is_message()

    def is_through(self) -> bool:
        """Whether it is complete, as far as another thread than the program's can see. That thread copies nothing, and
        does not touch what a thread waits for."""
        if self._finish is None and self._under_way.any_thread and not self._under_way.lost:
            self.look()
        return self.done

    def unfinished(self) -> str:
        """What is the matter at the end of the program; empty if nothing is."""
        if not self.done and not self._under_way.lost:
            self.look()
        return "" if self.done else f"{self._message.pending.operation}: {self._message.pending.missing}"


if kernel is not None:
    kernel.prepare_requests(Request, open_requests)
