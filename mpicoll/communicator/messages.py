"""Point-to-point messages of arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from numpy import ndarray

from mpicoll.arrays.buffers import Buffer, as_buffer, memory_overlaps
from mpicoll.arrays.protocols import A, ArrayLike
from mpicoll.calls.arguments import checked_int, checked_rank
from mpicoll.calls.plan import NOT_FOUND
from mpicoll.calls.record import Pending
from mpicoll.communicator import kinds, staging
from mpicoll.communicator.base import Base
from mpicoll.communicator.requests import Message, Request
from mpicoll.errors import ArgumentError, TimeoutError
from mpicoll.fabrics.fabric import Envelope, Nobody, Transfer
from mpicoll.machine.patience import Patience

__all__ = ["Bound", "Messages", "Request"]

Bound = Message | Callable[[], Request]
"""A message whose arguments are right: bound to its memory, or a function that copies the memory and starts it."""

_EXACT = frozenset((int, type(None)))
"""Types of ranks and tags by which a message is found again. Of others, such as True, some are wrong and equal to a
right one."""


_KEYS = frozenset((tuple, type(None)))
"""Types of the key of a sendrecv's output: None if that is the input."""


class Messages(Base):
    """The point-to-point messages of the Communicator.

    ``tag`` tells messages between two ranks apart: a receive takes messages with its own tag alone, and with any tag if
    it gives None. Where a rank is asked for, ``MPI.PROC_NULL`` is nobody: nothing is sent, and an array that receives
    stays as it is. ``MPI.ANY_SOURCE`` and ``MPI.ANY_TAG`` mean the same as None.
    """

    def send(self, x: ArrayLike, dest: int, tag: int = 0) -> None:
        """Send ``x`` to the rank ``dest``. Returns when ``x`` may be overwritten.

        That may be before the other rank receives the message, or only then.
        """
        self.carry("send", x, dest, tag, False)

    def recv(self, x: A, source: int | None = None, tag: int | None = 0) -> A:
        """Receive a message from the rank ``source``, or from any rank if that is None, into ``x``. Returns ``x``.

        ``x`` has the dtype and the number of elements of the message. Raises MessageError if the number is another.
        The request of an :meth:`irecv` knows who has sent it, and with which tag. :meth:`probe` knows it before.
        """
        self.carry("recv", x, source, tag, True)
        return x

    def isend(self, x: ArrayLike, dest: int, tag: int = 0) -> Request:
        """Start to send ``x`` to the rank ``dest``. ``x`` must not be changed until the request is complete."""
        return self.begin("isend", x, dest, tag, False)

    def irecv(self, x: ArrayLike, source: int | None = None, tag: int | None = 0) -> Request:
        """Start to receive a message from the rank ``source``, or from any rank if that is None, into ``x``.

        ``x`` holds the message when the request is complete, and must not be used before. The request knows the
        ``source`` and the ``tag`` of the message then.
        """
        return self.begin("irecv", x, source, tag, True)

    def sendrecv(
        self, x: ArrayLike, dest: int, out: A, source: int | None = None, sendtag: int = 0, recvtag: int | None = 0
    ) -> A:
        """Send ``x`` to the rank ``dest`` and receive into ``out`` from ``source`` at once. Returns ``out``.

        There is no deadlock, whatever the order in which ranks call it. ``x`` and ``out`` share no memory, or are one
        array: then what comes replaces what was sent, and both have the same length. All else is as in :meth:`send` and
        :meth:`recv`.
        """
        at: Any = None
        y: Any = out
        try:
            address = self._address
            here = (address(x), x.size, x.dtype, x.flags.num) if type(x) is ndarray else self._key(x)
            if y is x:
                there: Any = None
            elif type(y) is ndarray:
                there = (address(y), y.size, y.dtype, y.flags.num)
            else:
                there = self._key(y) or y
            at = here, dest, there, source, sendtag, recvtag
            both: Bound | None = self._messages_of(at)
        except NOT_FOUND:
            both = None
        if both is None or not (type(dest) is type(sendtag) is int and type(source) in _EXACT and type(recvtag) is int):
            both = self._bind_both(x, dest, out, source, sendtag, recvtag, at)
        self.transfer(both, out)
        return out

    def probe(self, source: int | None = None, tag: int | None = 0) -> Envelope:
        """Wait for a message that :meth:`recv` would take with these arguments. Returns its source, tag and length in
        bytes. The message is still to be received."""
        pending = Pending.message("probe", self._whence(*self._origin("probe", source, tag)), 0, "object")
        patience = Patience(self._under_way.timeout or float("inf"))
        with self._under_way.waiting(pending):
            while (found := self.iprobe(source, tag)) is None:
                if not patience.lasts():
                    why = f"probe: {pending.missing} within {self.timeout:g} s"
                    self.close(why)
                    raise TimeoutError(why)
        return found

    def iprobe(self, source: int | None = None, tag: int | None = 0) -> Envelope | None:
        """The same without waiting: None if no such message has come."""
        self.check_open("iprobe")
        of, which = self._origin("iprobe", source, tag)
        if of == self._fabric.nobody:
            return Envelope(self._fabric.nobody, self._fabric.any_tag, 0)
        try:
            if not self._tells_kinds:
                return self._fabric.probe(of, which)
            tags = [None] if which is None else range(which * kinds.KINDS, (which + 1) * kinds.KINDS)
            found = next((found for tag in tags if (found := self._fabric.probe(of, tag)) is not None), None)
            return found and found._replace(tag=kinds.of_program(found.tag))
        except self._failure as e:
            raise self._error("iprobe", e) from e

    # -- what is bound, and made to happen ----------------------------------------------------------------------------

    # The names of these arguments are those of the methods. A message that was bound before is found in line, three
    # times: a call more would cost as much as all that is noted of a message.

    def carry(self, operation: str, x: Any, peer: int | None, tag: int | None, receives: bool) -> None:
        """Send ``x`` to the rank ``peer``, or receive it from there, and return when that is complete. Errors name
        ``operation``."""
        try:
            key = (self._address(x), x.size, x.dtype, x.flags.num) if type(x) is ndarray else self._key(x)
            message: Bound | None = self._messages_of((operation, key, peer, tag))
        except NOT_FOUND:
            message = None
        if message is None or type(peer) not in _EXACT or type(tag) not in _EXACT:
            message = self._bind_message(operation, x, peer, tag, receives)
        self.transfer(message, x)

    def begin(self, operation: str, x: Any, peer: int | None, tag: int | None, receives: bool) -> Request:
        """The same, under way."""
        try:
            key = (self._address(x), x.size, x.dtype, x.flags.num) if type(x) is ndarray else self._key(x)
            message = self._messages_of((operation, key, peer, tag))
        except NOT_FOUND:
            message = None
        if message is None or type(peer) not in _EXACT or type(tag) not in _EXACT:
            return self.start(self._bind_message(operation, x, peer, tag, receives), x)
        try:
            return Request(message, message.transfer.start(), x, self._under_way)
        except self._failure as e:
            raise self._error(operation, e) from e

    def message(self, operation: str, x: Any, peer: int | None, tag: int | None, receives: bool) -> Bound:
        """The same, checked and bound, to be made to happen later by :meth:`transfer` or :meth:`start`."""
        try:
            message = self._messages_of((operation, self._key(x), peer, tag))
        except NOT_FOUND:
            message = None
        if message is None or type(peer) not in _EXACT or type(tag) not in _EXACT:
            return self._bind_message(operation, x, peer, tag, receives)
        return message

    def transfer(self, message: Bound, x: Any) -> None:
        """Send or receive what is bound to ``x``, and return when that is complete."""
        if type(message) is not Message or (now := message.now) is None:
            self.start(message, x).wait()
            return
        under_way = self._under_way
        begun = message.pending, monotonic()
        under_way.begun.append(begun)
        waits = under_way.waits
        waits.append(begun)
        try:
            now()
        except self._failure as e:
            raise under_way.error(message, x, e) from e
        finally:
            waits.remove(begun)
        if message.receives and (arrived := message.transfer.arrived()) != message.count:
            raise message.wrong(arrived, message.transfer.source())

    def _bind_message(self, operation: str, x: Any, peer: int | None, tag: int | None, receives: bool) -> Bound:
        self.check_open(operation)
        bind = self._incoming if receives else self._outgoing
        bound, key = bind(operation, x, peer, tag), self._key(x)
        if isinstance(bound, Message) and key is not None and type(peer) in _EXACT and type(tag) in _EXACT:
            self._bound_messages.keep((operation, key, peer, tag), bound)
        return bound

    def _outgoing(self, operation: str, x: ArrayLike, dest: int | None, tag: int | None) -> Bound:
        to, tag = self._peer(operation, dest, "dest"), self._tag(operation, tag)
        given = self._memory(operation, x)
        where = f"was taken by {self._named(to)} (tag {tag})"

        def bound(wire: Buffer) -> Message:
            to_mpi = kinds.on_wire(tag, wire.dtype.name) if self._tells_kinds else tag
            transfer = self._nobody(wire) if to == self._fabric.nobody else self._fabric.outgoing(wire, to, to_mpi)
            return self._bound(operation, where, wire, transfer, False)

        def copied() -> Request:
            wire = self._device_calls.for_message(given) or staging.copied_to_host(given)
            return self._started(bound(wire), wire)

        return bound(given.part(0, given.count)) if self._fabric.usable(given) else copied

    def _incoming(self, operation: str, x: ArrayLike, source: int | None, tag: int | None) -> Bound:
        of, which = self._origin(operation, source, tag)
        taken = self._memory(operation, x, writable=True)
        whence = self._whence(of, which)

        def bound(wire: Buffer) -> Message:
            if of == self._fabric.nobody:
                return self._bound(operation, whence, wire, self._nobody(wire), True)
            if not self._tells_kinds:
                return self._bound(operation, whence, wire, self._fabric.incoming(wire, of, which), True)
            kind = wire.dtype.name
            to_mpi = None if which is None else kinds.on_wire(which, kind)
            message = self._bound(operation, whence, wire, self._fabric.incoming(wire, of, to_mpi), True)
            message.kind = kind
            if which is not None:
                message.meanwhile = partial(kinds.look_for_others, operation, kind, of, which, self._fabric.probe)
            return message

        def copied() -> Request:
            there = self._device_calls.for_message(taken)
            wire = there or staging.copied_to_host(taken)
            return self._started(bound(wire), wire, None if there else lambda: staging.written_back(taken, wire))

        return bound(taken.part(0, taken.count)) if self._fabric.usable(taken) else copied

    def _bind_both(
        self,
        x: Any,
        dest: int,
        out: Any,
        source: int | None,
        sendtag: int,
        recvtag: int | None,
        at: tuple[Any, ...] | None = None,
    ) -> Bound:
        """The two messages of a sendrecv as one. Where there is no such call, both are started, and the sent one is
        waited for last. The same message is found again by ``at``."""
        operation = "sendrecv"
        self.check_open(operation)
        given, taken = self._memory(operation, x), self._memory(operation, out, "out", writable=True)
        one = (given.address, given.shape, given.strides) == (taken.address, taken.shape, taken.strides)
        if memory_overlaps(given, taken) and not (one and given.dtype == taken.dtype):
            raise ArgumentError(operation, "out", "x itself, or memory apart from x's", "memory that overlaps x's")
        to, sendtag = self._peer(operation, dest, "dest"), self._tag(operation, sendtag, "sendtag")
        of, which = self._origin(operation, source, recvtag, "recvtag")
        plain = self._fabric.usable(given) and self._fabric.usable(taken)
        wires = [b.part(0, b.count) for b in (given, taken)] if plain else []
        transfer = self._fabric.both(wires[0], to, sendtag, wires[1], of, which) if wires else None
        if transfer is not None and self._under_way.timeout is None and of != self._fabric.nobody:
            what = f"{self._whence(of, which)}, or none was taken by {self._named(to)} (tag {sendtag})"
            both = self._bound(operation, what, wires[1], transfer, True)
            known = at is not None and at[0] is not None and type(at[2]) in _KEYS
            if known and _EXACT.issuperset(map(type, (dest, source, sendtag, recvtag))):
                self._bound_messages.keep(at, both)
            return both

        def side_by_side() -> Request:
            sent = as_buffer(given.on_host().array, operation, "x").array if one else x
            coming = self.start(self._incoming(operation, out, of, which), out)
            going = self.start(self._outgoing(operation, sent, to, sendtag), sent)
            coming.wait()
            return going

        return side_by_side

    # -- arguments ----------------------------------------------------------------------------------------------------

    def _memory(self, operation: str, x: Any, argument: str = "x", writable: bool = False) -> Buffer:
        """The array of a message, on a device that may be used."""
        b = as_buffer(x, operation, argument)
        if writable:
            b.check_writable(operation, argument)
        self._device_calls.check(b, operation, argument)
        return b

    def _peer(self, operation: str, rank: Any, argument: str) -> int:
        """A rank, or nobody."""
        if _is(rank, self._fabric.nobody):
            return self._fabric.nobody
        return checked_rank(rank, self.size, operation, argument)

    def _tag(self, operation: str, tag: Any, argument: str = "tag") -> int:
        return checked_int(tag, 0, self._most_tag, operation, argument)

    def _origin(self, operation: str, source: Any, tag: Any, argument: str = "tag") -> tuple[int | None, int | None]:
        """Who must have sent a message, and with which tag. None means any."""
        of = None if source is None or _is(source, self._fabric.anybody) else self._peer(operation, source, "source")
        any_tag = tag is None or _is(tag, self._fabric.any_tag)
        return of, None if any_tag else self._tag(operation, tag, argument)

    def _named(self, rank: int | None) -> str:
        if rank is None:
            return "any rank"
        return "nobody" if rank == self._fabric.nobody else f"rank {rank}"

    def _whence(self, of: int | None, tag: int | None) -> str:
        return f"came from {self._named(of)} ({'any tag' if tag is None else f'tag {tag}'})"

    def _nobody(self, b: Buffer) -> Transfer:
        return Nobody(self._fabric.nobody, self._fabric.any_tag, b.count)

    def _bound(self, operation: str, what: str, wire: Buffer, transfer: Transfer, receives: bool) -> Message:
        pending = Pending.message(operation, what, wire.count, wire.dtype.name)
        return Message(pending, transfer, receives, in_time=self._under_way.timeout is not None)


def _is(given: Any, name: int) -> bool:
    """Whether a rank or tag is this one of MPI's names. A bool, or a number of another type, is none."""
    return type(given) is int and given == name
