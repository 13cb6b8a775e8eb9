"""Messages under way: how a program waits for one, and who keeps the memory of those that it lets go."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from mpicoll.arrays.buffers import Buffer
from mpicoll.errors import MessageError, MpicollError, StateError, TimeoutError
from mpicoll.fabrics.fabric import Transfer
from mpicoll.machine.patience import Patience

__all__ = ["Request", "UnderWay"]

LEAST = 16 << 20
"""Bytes of messages that may have been completed without anybody having looked."""
OVERHEAD = 64 << 10
"""Bytes that a message counts for besides its own: so many short ones are a long one."""


class UnderWay:
    """The messages of one communicator that MPI still reads or writes.

    They are kept from being collected with their memory, though the program may drop them. Every so many bytes it
    looks which are complete, and lets those go: all together hold no more than ``LEAST``, or twice what is really
    under way."""

    lost = ""
    """Why no message can be waited for any more, empty while they can."""

    def __init__(self, failure: type[Exception] | tuple[()]) -> None:
        self.failure = failure
        self.timeout: float | None = None
        """The seconds that a program waits for a message, None if it waits for ever."""
        self.timed_out: Callable[[str], object] = str
        """Told why, when a message did not come in time."""
        self.loss: Callable[[str, BaseException], MpicollError | None] = lambda *_: None
        """The error of an operation that the fabric has ended because ranks were lost; None if that is not why."""
        self.begun: deque[tuple[str, str, int, str, float]] = deque(maxlen=1)
        """The last messages, as the communicator's recorder keeps them."""
        self.waits: list[tuple[str, str]] = []
        """What threads wait for now: the operation, and which message has not come or was not taken."""
        self._requests: set[Request] = set()
        self._since = 0  # bytes that were added since it looked
        self._limit = LEAST

    def add(self, request: Request) -> None:
        """Keep the message."""
        self._requests.add(request)
        _kept.add(request)
        self._since += request.nbytes
        if self._since > self._limit:
            self.let_go()

    def discard(self, request: Request) -> None:
        """The message is complete."""
        self._requests.discard(request)
        _kept.discard(request)

    @contextmanager
    def waiting(self, operation: str, what: str) -> Iterator[None]:
        """Around a wait for a message that has not come yet, or was not taken, as ``what`` says."""
        wait = operation, what
        self.begun.append((operation, what, 1, "object", monotonic()))
        self.waits.append(wait)
        try:
            yield
        finally:
            self.waits.remove(wait)

    def let_go(self) -> None:
        """Let go what is complete by now."""
        self._since = 0
        for request in list(self._requests):
            request.look()
        self._limit = max(LEAST, sum(request.nbytes for request in list(self._requests)))


_kept: set[Request] = set()
"""All communicators' messages: a program may drop a communicator, too."""
_of_losses: list[Buffer | None] = []
"""The memory of messages that ended because ranks were lost."""


class Request:
    """A message under way. Its array must not be used until :meth:`wait` has returned or :meth:`test` is True.

    Several threads may use one request. While one of them waits, :meth:`test` is False for the others.
    """

    def __init__(
        self,
        operation: str,
        transfer: Transfer,
        under_way: UnderWay,
        memory: Buffer,
        receives: bool,
        peer: str,
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._operation, self._transfer, self._under_way, self._peer = operation, transfer, under_way, peer
        self._receives, self._count, self._dtype = receives, memory.count, memory.dtype
        self._memory: Buffer | None = memory  # MPI knows its address alone
        self._finish = finish
        self._failed: MpicollError | None = None
        self._asking = threading.Lock()  # two threads may not wait for, or test, one of MPI's requests at once
        self.nbytes = memory.nbytes + OVERHEAD
        """Bytes that it counts for while it is under way: the length of the message, and an overhead."""
        self.done = False
        """Whether it is complete, or has failed."""
        self.source: int | None = None
        """The rank that sent a received message, once that is here. None until then, and for a message sent."""
        under_way.add(self)
        under_way.begun.append((operation, peer, memory.count, memory.dtype.name, monotonic()))

    def wait(self) -> None:
        """Return when the message has arrived, or when the array that is sent may be overwritten.

        Raises MessageError if what arrived is longer or shorter than the array, or if MPI reports an error; the first
        call that finds it raises it, and later ones do not. Raises StateError in a process that was forked. With
        ``check="full"``, raises TimeoutError after the communicator's ``timeout``, which closes the communicator. An
        array that was to be sent must not be changed then: the message may still be taken.
        """
        self._check_not_lost()
        waits, wait = self._under_way.waits, (self._operation, self._peer)
        waits.append(wait)
        try:
            if self._under_way.timeout is None:
                with self._asking:
                    self._ask(block=True)
            else:
                self._wait_in_time(self._under_way.timeout)
        finally:
            waits.remove(wait)
        self._raise()

    def _wait_in_time(self, seconds: float) -> None:
        patience = Patience(seconds)
        while not self.done:
            self.look()
            if not self.done and not patience.lasts():
                why = f"no message {self._peer} within {seconds:g} s"
                if self._receives and not self.cancel() and self.source is not None:
                    return  # it came at the last moment, and was taken as any other
                self._under_way.timed_out(f"{self._operation}: {why}")
                raise TimeoutError(f"{self._operation}: {why}")

    def test(self) -> bool:
        """Return whether it is complete, without waiting. Raises as :meth:`wait` does."""
        self._check_not_lost()
        self.look()
        if not self.done:
            return False
        self._raise()
        return True

    def cancel(self) -> bool:
        """Give up receiving. The array is not written to afterwards.

        Returns False if the message has arrived already. Raises as :meth:`wait` does.
        """
        self._check_not_lost()
        given_up = False
        with self._asking:
            self._ask(block=False)
            if not self.done:
                given_up = self._transfer.cancel()
                self._end()
        self._raise()
        return given_up

    def look(self) -> None:
        """See whether it is complete, unless another thread does so now. An error is kept for :meth:`wait` to raise."""
        if not self.done and self._asking.acquire(blocking=False):
            try:
                self._ask(block=False)
            finally:
                self._asking.release()

    def _ask(self, block: bool) -> None:
        """Complete it if it has arrived, or wait until it has; the caller holds the lock."""
        if self.done:
            return
        try:
            if block:
                self._transfer.wait()
            elif not self._transfer.test():
                return
        except self._under_way.failure as e:
            self._failed = self._under_way.loss(self._operation, e)
            if self._failed is not None:
                _of_losses.append(self._memory)  # MPI may still write to it
            else:
                self._failed = MessageError(f"{self._operation}: the MPI library reports: {e}{self._hint()}")
            self._failed.__cause__ = e
        except MessageError as e:
            self._failed = e
        else:
            self._check()
            if self._failed is None and self._finish is not None:
                self._finish()
        self._end()

    def _check_not_lost(self) -> None:
        if self._under_way.lost:
            raise StateError(f"{self._operation}: this message cannot be waited for: {self._under_way.lost}")

    def _check(self) -> None:
        """What was received has the array's length."""
        if not self._receives:
            return
        self.source, arrived = self._transfer.source, self._transfer.arrived
        if arrived != self._count:
            what = "part of an element" if arrived is None else f"{arrived}"
            self._failed = MessageError(
                f"{self._operation}: expected {self._count} elements of {self._dtype} "
                f"from rank {self.source}; {what} arrived"
            )

    def _end(self) -> None:
        self._memory = self._finish = None
        self.done = True
        self._under_way.discard(self)

    def _raise(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _hint(self) -> str:
        if not self._receives:
            return ""
        return f" (the array has {self._count} elements of {self._dtype}: was more sent?)"

    def __del__(self) -> None:
        if getattr(self, "_failed", None) is not None:
            warnings.warn(f"nobody has waited for this message: {self._failed}", RuntimeWarning, stacklevel=1)
