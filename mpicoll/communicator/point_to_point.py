"""Point-to-point messages of arrays."""

from __future__ import annotations

from typing import Any

from mpicoll.arrays.buffers import exported
from mpicoll.arrays.protocols import A, ArrayLike
from mpicoll.communicator.base import CommunicatorBase
from mpicoll.communicator.engine.requests import Request
from mpicoll.communicator.repeated import repeated
from mpicoll.fabrics.fabric import Envelope


class PointToPoint(CommunicatorBase):
    """The point-to-point messages of the Communicator.

    ``tag`` tells messages between two ranks apart: a receive takes messages with its own tag alone, and with any tag if
    it gives None. Where a rank is asked for, ``MPI.PROC_NULL`` is nobody: nothing is sent, and an array that receives
    stays as it is. ``MPI.ANY_SOURCE`` and ``MPI.ANY_TAG`` mean the same as None."""

    @repeated
    def send(self, x: ArrayLike, dest: int, tag: int = 0) -> None:
        """Send ``x`` to the rank ``dest``. Returns when ``x`` may be overwritten.

        That may be before the other rank receives the message, or only then."""
        self._engine.carry("send", x, dest, tag, False)

    @repeated
    def recv(self, x: A, source: int | None = None, tag: int | None = 0) -> A:
        """Receive a message from the rank ``source``, or from any rank if that is None, into ``x``. Returns ``x``.

        ``x`` has the dtype and the number of elements of the message. Raises MessageError if the number is another.
        The request of an :meth:`irecv` knows who has sent it, and with which tag. :meth:`probe` knows it before."""
        self._engine.carry("recv", x, source, tag, True)
        return x

    @repeated
    def isend(self, x: ArrayLike, dest: int, tag: int = 0) -> Request:
        """Start to send ``x`` to the rank ``dest``. ``x`` must not be changed until the request is complete."""
        return self._engine.begin("isend", x, dest, tag, False)

    @repeated
    def irecv(self, x: ArrayLike, source: int | None = None, tag: int | None = 0) -> Request:
        """Start to receive a message from the rank ``source``, or from any rank if that is None, into ``x``.

        ``x`` holds the message when the request is complete, and must not be used before. The request knows the
        ``source`` and the ``tag`` of the message then."""
        return self._engine.begin("irecv", x, source, tag, True)

    @repeated
    def sendrecv(
        self, x: ArrayLike, dest: int, out: A, source: int | None = None, sendtag: int = 0, recvtag: int | None = 0
    ) -> A:
        """Send ``x`` to the rank ``dest`` and receive into ``out`` from ``source`` at once. Returns ``out``.

        There is no deadlock, whatever the order in which ranks call it. ``x`` and ``out`` share no memory, or are one
        array: then what comes replaces what was sent, and both have the same length. All else is as in :meth:`send` and
        :meth:`recv`."""
        here = exported(x)
        there: Any = here if out is x else exported(out)
        self._engine.transfer(self._engine.both(here, dest, there, source, sendtag, recvtag), (here, there))
        return out

    def probe(self, source: int | None = None, tag: int | None = 0) -> Envelope:
        """Wait for a message that :meth:`recv` would take with these arguments. Returns its source, tag and length in
        bytes. The message is still to be received. With ``check="full"``, it may be one of another dtype than the first
        one of this tag, if a message of another tag has come before both."""
        return self._engine.probe(source, tag)

    def iprobe(self, source: int | None = None, tag: int | None = 0) -> Envelope | None:
        """The same without waiting: None if no such message has come."""
        return self._engine.iprobe(source, tag)
