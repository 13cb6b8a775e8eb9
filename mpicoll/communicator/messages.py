"""Point-to-point messages of arrays."""

from __future__ import annotations

from collections.abc import Callable

from mpicoll.arrays.buffers import Buffer, as_buffer, memory_overlaps
from mpicoll.arrays.protocols import A, ArrayLike
from mpicoll.calls.arguments import checked_rank
from mpicoll.communicator import staging
from mpicoll.communicator.base import Base
from mpicoll.communicator.requests import Request
from mpicoll.errors import ArgumentError

__all__ = ["Messages", "Request"]


class Messages(Base):
    """The point-to-point messages of the Communicator.

    ``tag`` tells messages between two ranks apart: a receive takes messages with its own tag alone.
    """

    def send(self, x: ArrayLike, dest: int, tag: int = 0) -> None:
        """Send ``x`` to the rank ``dest``. Returns when ``x`` may be overwritten.

        That may be before the other rank receives the message, or only then.
        """
        self.outgoing("send", x, dest, tag)().wait()

    def recv(self, x: A, source: int | None = None, tag: int = 0) -> A:
        """Receive a message from the rank ``source``, or from any rank if that is None, into ``x``. Returns ``x``.

        ``x`` has the dtype and the number of elements of the message. Raises MessageError if the number is another.
        """
        self.incoming("recv", x, source, tag)().wait()
        return x

    def isend(self, x: ArrayLike, dest: int, tag: int = 0) -> Request:
        """Start to send ``x`` to the rank ``dest``. ``x`` must not be changed until the request is complete."""
        return self.outgoing("isend", x, dest, tag)()

    def irecv(self, x: ArrayLike, source: int | None = None, tag: int = 0) -> Request:
        """Start to receive a message from the rank ``source``, or from any rank if that is None, into ``x``.

        ``x`` holds the message when the request is complete, and must not be used before.
        """
        return self.incoming("irecv", x, source, tag)()

    def sendrecv(
        self, x: ArrayLike, dest: int, out: A, source: int | None = None, sendtag: int = 0, recvtag: int = 0
    ) -> A:
        """Send ``x`` to the rank ``dest`` and receive into ``out`` from ``source`` at once. Returns ``out``.

        There is no deadlock, whatever the order in which ranks call it. ``x`` and ``out`` share no memory. All else is
        as in :meth:`send` and :meth:`recv`.
        """
        if memory_overlaps(as_buffer(x, "sendrecv", "x"), as_buffer(out, "sendrecv", "out")):
            raise ArgumentError("sendrecv", "out", "memory apart from x's", "memory that overlaps x's")
        start_send = self.outgoing("sendrecv", x, dest, sendtag)
        received = self.incoming("sendrecv", out, source, recvtag)()
        sent = start_send()
        received.wait()
        sent.wait()
        return out

    def outgoing(self, operation: str, x: ArrayLike, dest: int, tag: int) -> Callable[[], Request]:
        """Check the arguments of an :meth:`isend` and return the function that starts it. Errors name ``operation``."""
        self.check_open(operation)
        to = checked_rank(dest, self.size, operation, "dest")
        self.check_tag(operation, tag)
        given = as_buffer(x, operation, "x")
        self._device_calls.check(given, operation, "x")

        def start() -> Request:
            wire = self._as_it_lies(given) or staging.copied_to_host(given)
            try:
                transfer = self._fabric.start_send(wire, to, tag)
            except self._failure as e:
                raise self._error(operation, e) from e
            return Request(operation, transfer, self._under_way, wire, False, f"was taken by rank {to} (tag {tag})")

        return start

    def _as_it_lies(self, b: Buffer) -> Buffer | None:
        """The buffer, if MPI can send or receive it without a copy."""
        return b if self._fabric.usable(b) else self._device_calls.for_message(b)

    def incoming(self, operation: str, x: ArrayLike, source: int | None, tag: int) -> Callable[[], Request]:
        """Check the arguments of an :meth:`irecv` and return the function that starts it. Errors name ``operation``."""
        self.check_open(operation)
        of = None if source is None else checked_rank(source, self.size, operation, "source")
        self.check_tag(operation, tag)
        taken = as_buffer(x, operation, "x")
        if not taken.writable:
            given = "one that is read-only, or whose elements share memory"
            raise ArgumentError(operation, "x", "an array that can be written to", given)
        self._device_calls.check(taken, operation, "x")

        def start() -> Request:
            there = self._as_it_lies(taken)
            wire = there or staging.copied_to_host(taken)
            try:
                transfer = self._fabric.start_recv(wire, of, tag)
            except self._failure as e:
                raise self._error(operation, e) from e
            finish = None if there is not None else (lambda: staging.written_back(taken, wire))
            whom = "any rank" if of is None else f"rank {of}"
            peer = f"came from {whom} (tag {tag})"
            return Request(operation, transfer, self._under_way, wire, True, peer, finish)

        return start
