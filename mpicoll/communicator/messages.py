"""Point-to-point messages of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpicoll.arrays.buffers import as_buffer, memory_overlaps
from mpicoll.calls.arguments import checked_rank
from mpicoll.communicator import staging
from mpicoll.communicator.base import Base
from mpicoll.communicator.requests import Request
from mpicoll.errors import ArgumentError

__all__ = ["Messages", "Request"]


class Messages(Base):
    """The point-to-point half of the Communicator. ``tag`` tells messages between two ranks apart."""

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
        self.check_open(operation)
        to = checked_rank(dest, self.size, operation, "dest")
        self.check_tag(operation, tag)
        given = as_buffer(x, operation, "x")

        def start() -> Request:
            staging.order_after_stream(given)
            wire = given if self._fabric.usable(given) else given.on_host()
            transfer = self._fabric.start_send(wire, to, tag)
            return Request(operation, transfer, self._under_way, wire, receives=False)

        return start

    def incoming(self, operation: str, x: Any, source: int | None, tag: int) -> Callable[[], Request]:
        """What starts an ``irecv`` whose arguments are found right, for an ``operation`` that errors name."""
        self.check_open(operation)
        of = None if source is None else checked_rank(source, self.size, operation, "source")
        self.check_tag(operation, tag)
        taken = as_buffer(x, operation, "x")
        if not taken.writable:
            given = "one that is read-only, or whose elements share memory"
            raise ArgumentError(operation, "x", "an array that can be written to", given)

        def start() -> Request:
            staging.order_after_stream(taken)
            wire = taken if self._fabric.usable(taken) else taken.on_host()
            transfer = self._fabric.start_recv(wire, of, tag)
            finish = None if wire is taken else (lambda: taken.assign(wire))
            return Request(operation, transfer, self._under_way, wire, True, finish)

        return start
