"""Point-to-point messages of arrays."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

from mpicoll import staging
from mpicoll.buffers import Buffer, as_buffer, memory_overlaps
from mpicoll.call import checked_rank
from mpicoll.errors import ArgumentError, MessageError
from mpicoll.fabrics import Fabric, Transfer

__all__ = ["Messages", "Request"]


class Request:
    """A message under way. Its array must not be touched until :meth:`wait` has returned or :meth:`test` is True."""

    def __init__(
        self,
        operation: str,
        transfer: Transfer,
        failure: type[Exception] | tuple[()],
        expected: Buffer | None,
        finish: Callable[[], None],
    ) -> None:
        self._operation, self._transfer, self._failure = operation, transfer, failure
        self._expected, self._finish = expected, finish
        self.done = False
        """Whether it is complete, or failed."""
        self.source: int | None = None
        """The rank that a received message came from, once it is here."""
        _under_way.add(self)
        if len(_under_way) % 256 == 0:  # those that the program dropped, complete by now
            for request in [r for r in list(_under_way) if r is not self and r._expected is None]:
                request.test()

    def wait(self) -> None:
        """Return when the message has arrived, or what is sent may be overwritten.

        Raises MessageError if what arrived is longer or shorter than the array."""
        self._complete(block=True)

    def test(self) -> bool:
        """Whether it is complete, without waiting; raises as :meth:`wait` does."""
        return self._complete(block=False)

    def cancel(self) -> bool:
        """Give up receiving: the array is not written to after this. False if the message is here already."""
        if self.test():
            return False
        given_up = self._transfer.cancel()
        self._end()
        return given_up

    def _end(self) -> None:
        self.done = True
        _under_way.discard(self)

    def _complete(self, block: bool) -> bool:
        if self.done:
            return True
        try:
            if block:
                self._transfer.wait()
            elif not self._transfer.test():
                return False
        except self._failure as e:
            self._end()
            raise MessageError(f"{self._operation}: the MPI library reports: {e}{self._hint()}") from e
        self._end()
        if self._expected is not None:
            self.source, arrived = self._transfer.source, self._transfer.arrived
            if arrived != self._expected.count:
                what = "part of an element" if arrived is None else f"{arrived}"
                raise MessageError(
                    f"{self._operation}: expected {self._expected.count} elements of {self._expected.dtype} "
                    f"from rank {self.source}; {what} arrived"
                )
        self._finish()
        return True

    def _hint(self) -> str:
        if self._expected is None:
            return ""
        return f" (the array has {self._expected.count} elements of {self._expected.dtype}: was more sent?)"


_under_way: set[Request] = set()
"""What MPI still reads or writes, kept from being collected with its memory though the program may drop it."""


class Messages:
    """The point-to-point half of the Communicator. ``tag`` tells messages between two ranks apart."""

    rank: int
    size: int
    _fabric: Fabric

    def _check_open(self, operation: str) -> None:
        raise AssertionError("the Communicator defines it")

    def send(self, x: Any, dest: int, tag: int = 0) -> None:
        """Send the array; returns when it may be overwritten."""
        self.outgoing("send", x, dest, tag)().wait()

    def recv(self, x: Any, source: int | None = None, tag: int = 0) -> Any:
        """Receive into the array, which must have the message's size, and return it. None: from any rank."""
        self.incoming("recv", x, source, tag)().wait()
        return x

    def isend(self, x: Any, dest: int, tag: int = 0) -> Request:
        """Start to send the array."""
        return self.outgoing("isend", x, dest, tag)()

    def irecv(self, x: Any, source: int | None = None, tag: int = 0) -> Request:
        """Start to receive into the array. None: from any rank."""
        return self.incoming("irecv", x, source, tag)()

    def sendrecv(
        self, x: Any, dest: int, out: Any, source: int | None = None, sendtag: int = 0, recvtag: int = 0
    ) -> Any:
        """Send ``x`` and receive into ``out`` at once, without deadlock whatever the order of the ranks."""
        if memory_overlaps(as_buffer(x, "sendrecv", "x"), as_buffer(out, "sendrecv", "out")):
            raise ArgumentError("sendrecv", "out", "memory apart from x's", "memory that overlaps x's")
        start_send = self.outgoing("sendrecv", x, dest, sendtag)
        received = self.incoming("sendrecv", out, source, recvtag)()
        sent = start_send()
        received.wait()
        sent.wait()
        return out

    def outgoing(self, operation: str, x: Any, dest: int, tag: int) -> Callable[[], Request]:
        """What starts an ``isend`` whose arguments are found right, for an ``operation`` that errors name."""
        self._check_open(operation)
        to = checked_rank(dest, self.size, operation, "dest")
        self._check_tag(operation, tag)
        given = as_buffer(x, operation, "x")

        def start() -> Request:
            staging.order_after_stream(given)
            wire = given if self._fabric.usable(given) else given.on_host()
            transfer = self._fabric.start_send(wire, to, tag)
            return Request(operation, transfer, self._fabric.failure, None, lambda: _release(given, wire))

        return start

    def incoming(self, operation: str, x: Any, source: int | None, tag: int) -> Callable[[], Request]:
        """What starts an ``irecv`` whose arguments are found right, for an ``operation`` that errors name."""
        self._check_open(operation)
        of = None if source is None else checked_rank(source, self.size, operation, "source")
        self._check_tag(operation, tag)
        taken = as_buffer(x, operation, "x")
        if not taken.writable:
            given = "one that is read-only, or whose elements share memory"
            raise ArgumentError(operation, "x", "an array that can be written to", given)

        def start() -> Request:
            staging.order_after_stream(taken)
            wire = taken if self._fabric.usable(taken) else taken.on_host()
            transfer = self._fabric.start_recv(wire, of, tag)
            finish = (lambda: None) if wire is taken else (lambda: taken.assign(wire))
            return Request(operation, transfer, self._fabric.failure, taken, finish)

        return start

    def _check_tag(self, operation: str, tag: Any) -> None:
        most = self._fabric.most_tag
        try:
            found = index(tag)
        except TypeError:
            found = -1
        if not 0 <= found <= most:
            raise ArgumentError(operation, "tag", f"an int from 0 to {most}", repr(tag))


def _release(*held: Buffer) -> None:
    """Until now, when the message is complete, its memory was kept alive by being named here."""
