"""Point-to-point messages: bound to their memory, found again, and made to happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pickle import UnpicklingError
from threading import get_ident
from time import monotonic
from typing import Any, NamedTuple

from mpicoll.arrays.buffers import Buffer, as_buffer, exported, memory_overlaps
from mpicoll.arrays.protocols import ArrayLike
from mpicoll.calls.arguments import checked_int, checked_rank
from mpicoll.communicator.engine import kinds
from mpicoll.communicator.engine.base import Base
from mpicoll.communicator.engine.masked_thread import MAIN, backoff
from mpicoll.communicator.engine.message import Message
from mpicoll.communicator.engine.packing import End, Packed, copied_to_host, keeps_no_array, written_back
from mpicoll.communicator.engine.requests import Finish, Request, hold_back
from mpicoll.errors import ArgumentError, MessageError, TimeoutError
from mpicoll.fabrics.fabric import Envelope, Nobody, Transfer
from mpicoll.supervise.messages import Ends
from mpicoll.supervise.record import Pending

Kind = type[Request]
BoundMessage = Message | Callable[[Kind], Request]
"""A message whose arguments are right: bound to its memory, or a function that copies the memory and starts it. The
function is given the type of the request."""

EXACT = frozenset((int, type(None)))
"""Types of ranks and tags by which a message is found again. Of others, such as True, some are wrong and equal to a
right one."""


NO_OBJECT = (UnpicklingError, EOFError, OverflowError)  # what unpickling raises of bytes that are no object


class OwnTag(int):
    """A tag of mpicoll's own messages, which no program can give."""


class About(NamedTuple):
    """What there is to know of a message before it is bound or has come."""

    pending: Pending
    tag: int | None  # the tag that MPI sees, None for any
    meanwhile: Callable[[], None] | None  # looks, while it is waited for, whether it can come at all


class MessageCalls(Base):
    """How an engine makes messages."""

    # The names of these arguments are those of the methods.

    def carry(self, operation: str, x: Any, peer: int | None, tag: int | None, receives: bool) -> None:
        """Send ``x`` to the rank ``peer``, or receive it from there, and return when that is complete. Errors name
        ``operation``."""
        x = exported(x)
        self.transfer(self.message(operation, x, peer, tag, receives), x)

    def begin(
        self, operation: str, x: Any, peer: int | None, tag: int | None, receives: bool, kind: Kind = Request
    ) -> Request:
        """The same, under way, as a request of this kind."""
        x = exported(x)
        return self.start(self.message(operation, x, peer, tag, receives), x, kind)

    def transfer(self, message: BoundMessage, x: Any) -> None:
        """Send or receive what is bound to ``x``, and return when that is complete."""
        if type(message) is not Message or (now := message.now) is None:
            self.start(message, x).wait()
            return
        if get_ident() != MAIN and self._is_held(message):
            self.start(message, x).wait()
            return
        under_way = self.under_way
        begun = message.pending, monotonic()
        under_way.begin_message(message.pending)
        waits = under_way.waits
        waits.append(begun)
        try:
            now()
        except self.failure as e:
            raise under_way.error(message, x, e) from e
        except BaseException:
            if not message.by_library:
                hold_back(x)  # the other rank may still send pieces there, or take them
            raise
        finally:
            waits.remove(begun)
        self.check_length(message)

    def check_length(self, message: Message) -> None:
        """Raise MessageError if what has come now has not the length of its array."""
        if message.receives and (arrived := message.transfer.arrived()) != message.count:
            raise message.wrong(arrived, message.transfer.source())

    def message_broke_off(self, message: Message, operation: str, e: BaseException, *arrays: object) -> None:
        """An exception has ended a message of the kernel's."""
        if isinstance(e, self.failure):
            raise self.under_way.error(message, arrays, e) from e
        hold_back(arrays)

    def object_broke_off(self, pending: Pending, operation: str, e: BaseException, *_: object) -> None:
        """The same of an object's."""
        if isinstance(e, NO_OBJECT):
            raise no_object(pending.ends.source_tag, e) from e
        if isinstance(e, self.failure):
            self.end_midway(operation, e)
            raise self.error(operation, e) from e

    def _keep(self, operation: str, x: Any, out: Any, numbers: tuple[int | None, ...], message: Message) -> None:
        """From now on, the kernel makes this message, unless it must come in time."""
        if self.calls is not None and not message.by_library and message.now is not None:
            run = None if type(message.transfer) is Nobody else message.now
            self.calls.keep_message(operation, x, out, numbers, message, run, message.pending)

    def _is_held(self, message: Message) -> bool:
        """Whether a thread waits for it that must not be within MPI at the end of the program."""
        ends = message.pending.ends
        both = ends.sources and ends.targets  # one call of MPI's makes these two at once
        return self.under_way.by_mpi and message.by_library and not both

    def start(self, message: BoundMessage, x: Any, kind: Kind = Request) -> Request:
        """Start a message that is bound to ``x``, or a collective that does not block."""
        if not isinstance(message, Message):
            return message(kind)
        return self.started(message, x, kind=kind)

    def started(
        self, message: Message, array: object, finish: Finish | None = None, result: Any = None, kind: Kind = Request
    ) -> Request:
        """A message whose memory may be a copy. ``finish`` writes what comes to where it belongs."""
        try:
            return kind(message, message.transfer.start(), array, self.under_way, finish, result)
        except self.failure as e:
            raise self.error(message.pending.operation, e) from e

    def message(self, operation: str, x: Any, peer: int | None, tag: int | None, receives: bool) -> BoundMessage:
        """The message, checked and bound, to be made to happen by :meth:`transfer` or :meth:`start`."""
        self.check_open(operation)
        key = self.key(x)
        at = operation, key, peer, tag
        lasts = key is not None and type(peer) in EXACT and type(tag) in EXACT
        bound: BoundMessage | None = self.bound_messages.get(at) if lasts else None
        if bound is None:
            bound = self._one(operation, x, peer, tag, receives)
        if isinstance(bound, Message) and lasts:
            self.bound_messages.keep(at, bound)
            self._keep(operation, x, None, (None, None, peer, tag) if receives else (peer, tag, None, None), bound)
        return bound

    def _one(self, operation: str, x: ArrayLike, peer: int | None, tag: int | None, receives: bool) -> BoundMessage:
        """A message that leaves, or one that comes."""
        if receives:
            other, tag = self.origin(operation, peer, tag)
        else:
            other, tag = self._peer(operation, peer, "dest"), self.checked_tag(operation, tag)
        memory = self._memory(operation, x, writable=receives)
        nobody = other == self.fabric.nobody
        about = self.about(operation, other, tag, receives, memory)
        if receives:
            bind: Callable[[Buffer], Transfer | None] = partial(
                self.fabric.messages.incoming, source=other, tag=about.tag
            )
        else:
            assert other is not None
            assert about.tag is not None
            bind = partial(self.fabric.messages.outgoing, dest=other, tag=about.tag)

        def bound(wire: Buffer) -> Message:
            end = End(wire, not receives, receives)
            if nobody:
                transfer: Transfer = Nobody(self.fabric.nobody, self.fabric.any_tag, wire.count)
            else:
                transfer = self._packed(bind, end)
            message = self._bound(about.pending, transfer, receives)
            if receives and self.tells_kinds and not nobody:
                message.kind, message.meanwhile = memory.dtype.name, about.meanwhile
            return message

        def copied(kind: Kind) -> Request:
            there = self.devices.for_message(memory)
            wire = there or copied_to_host(memory)
            finish = partial(written_back, memory, wire) if receives and not there else None
            return self.started(bound(wire), wire, finish, kind=kind)

        if memory.device != "cpu" and not self.fabric.usable(memory):
            return copied
        if self.key(x) is not None:
            return bound(replace(memory, array=None))
        # It may be an object that hands out new memory each time: its message keeps that.
        return lambda kind: self.started(bound(memory), memory, kind=kind)

    def _packed(self, bind: Callable[..., Transfer | None], *ends: End) -> Transfer:
        """The transfer that ``bind`` binds to the memory of these ends, or to copies of what has gaps."""
        buffers = [end.buffer for end in ends]
        usable = all(b is None or b.plain or keeps_no_array(b) for b in buffers)
        return (bind(*buffers) if usable else None) or Packed(bind, *ends)

    def both(self, x: Any, dest: int, out: Any, source: int | None, sendtag: int, recvtag: int | None) -> BoundMessage:
        """The two messages of a sendrecv as one. Where there is no such call, both are started, and the sent one is
        waited for last."""
        operation = "sendrecv"
        self.check_open(operation)
        here, there = self.key(x), None if out is x else self.key(out)
        at = here, dest, there, source, sendtag, recvtag
        lasts = here is not None and (there is not None or out is x)
        lasts = lasts and EXACT.issuperset(map(type, (dest, source, sendtag, recvtag)))
        if lasts and (found := self.bound_messages.get(at)) is not None:
            self._keep(operation, x, None if out is x else out, (dest, sendtag, source, recvtag), found)
            return found
        given, taken = self._memory(operation, x), self._memory(operation, out, "out", writable=True)
        one = (given.address, given.shape, given.strides) == (taken.address, taken.shape, taken.strides)
        if memory_overlaps(given, taken) and not (one and given.dtype == taken.dtype):
            raise ArgumentError(operation, "out", "x itself, or memory apart from x's", "memory that overlaps x's")
        to, sendtag = self._peer(operation, dest, "dest"), self.checked_tag(operation, sendtag, "sendtag")
        of, which = self.origin(operation, source, recvtag, "recvtag")

        def side_by_side(_: Kind) -> Request:
            sent = as_buffer(given.on_host().array, operation, "x").array if one else x
            coming = self.start(self._one(operation, out, of, which, True), out)
            going = self.start(self._one(operation, sent, to, sendtag, False), sent)
            coming.wait()
            return going

        bound: BoundMessage | None = None
        if of == self.fabric.nobody:
            bound = self._one(operation, x, to, sendtag, False)
        elif lasts and self.under_way.timeout is None and given.device == taken.device == "cpu":
            bound = self._at_once(given, taken, one, to, sendtag, of, which)
        if isinstance(bound, Message) and lasts:
            self.bound_messages.keep(at, bound)
            self._keep(operation, x, None if out is x else out, (dest, sendtag, source, recvtag), bound)
        return side_by_side if bound is None else bound

    def _at_once(
        self, given: Buffer, taken: Buffer, one: bool, to: int, sendtag: int, of: int | None, which: int | None
    ) -> Message | None:
        """The two messages as one call of the fabric; None if it has no such call."""

        def bind(sent: Buffer | None, came: Buffer) -> Transfer | None:
            return self.fabric.messages.both(came if sent is None else sent, to, sendtag, came, of, which)

        given, taken = (replace(b, array=None) for b in (given, taken))
        if bind(given, taken) is None:
            return None
        transfer = self._packed(bind, End(None if one else given, True, False), End(taken, one, True))
        what = f"{self._whence(of, which)}, or none was taken by {self._rank_named(to)} (tag {sendtag})"
        ends = Ends(self._at_other_end(of), which, self._at_other_end(to), sendtag)
        pending = Pending.message("sendrecv", what, taken.count, taken.dtype.name, ends, taken.nbytes)
        return self._bound(pending, transfer, True)

    def probe(self, source: int | None, tag: int | None) -> Envelope:
        """Wait for a message that a receive would take. It is still to be received."""
        of, which = self.origin("probe", source, tag)
        pending = self.about("probe", of, which, True).pending._replace(elements=0)
        under_way, begun = self.under_way, (pending, monotonic())
        its = backoff(under_way.timeout or float("inf"))
        under_way.begin_message(pending)
        under_way.waits.append(begun)
        try:
            waits = under_way.timeout is None
            while (found := self.iprobe(source, tag, "probe", waits)) is None:
                if not its.wait():
                    why = f"probe: {pending.missing} within {self.timeout:g} s"
                    self.close(why)
                    raise TimeoutError(why)
        finally:
            under_way.waits.remove(begun)
        return found

    def iprobe(
        self, source: int | None, tag: int | None, operation: str = "iprobe", waits: bool = False
    ) -> Envelope | None:
        """The same without waiting: None if no such message has come. If ``waits``, the fabric may wait for one."""
        self.check_open(operation)
        of, which = self.origin(operation, source, tag)
        if of == self.fabric.nobody:
            return Envelope(self.fabric.nobody, self.fabric.any_tag, 0)
        try:
            if not self.tells_kinds:
                return self.fabric.messages.probe(of, which, waits)
            first = self.fabric.messages.probe(of, None)
            if first is not None and which is not None and kinds.of_program(first.tag) != which:
                tags = range(which * kinds.KINDS, (which + 1) * kinds.KINDS)  # those behind it have no order
                first = next(
                    (found for tag in tags if (found := self.fabric.messages.probe(of, tag)) is not None), None
                )
            return first and first._replace(tag=kinds.of_program(first.tag))
        except self.failure as e:
            raise self.error(operation, e) from e

    # -- arguments ----------------------------------------------------------------------------------------------------

    def _memory(self, operation: str, x: Any, argument: str = "x", writable: bool = False) -> Buffer:
        """The array of a message, on a device that may be used."""
        b = as_buffer(x, operation, argument)
        if writable:
            b.check_writable(operation, argument)
        self.devices.check(b, operation, argument)
        return b

    def _peer(self, operation: str, rank: Any, argument: str) -> int:
        """A rank, or nobody."""
        if _is(rank, self.fabric.nobody):
            return self.fabric.nobody
        return checked_rank(rank, self.size, operation, argument)

    def checked_tag(self, operation: str, tag: Any, argument: str = "tag") -> int:
        return int(tag) if type(tag) is OwnTag else checked_int(tag, 0, self.most_tag, operation, argument)

    def own_tags(self, count: int) -> list[OwnTag]:
        """As many tags for messages of mpicoll's own: the highest ones, which no program can give from now on."""
        self.most_tag -= count
        return [OwnTag(self.most_tag + 1 + i) for i in range(count)]

    def origin(self, operation: str, source: Any, tag: Any, argument: str = "tag") -> tuple[int | None, int | None]:
        """Who must have sent a message, and with which tag. None means any."""
        of = None if source is None or _is(source, self.fabric.anybody) else self._peer(operation, source, "source")
        any_tag = tag is None or _is(tag, self.fabric.any_tag)
        return of, None if any_tag else self.checked_tag(operation, tag, argument)

    def about(
        self, operation: str, other: int | None, tag: int | None, receives: bool, memory: Buffer | None = None
    ) -> About:
        """What there is to know of a message with this rank before it is bound or has come. It is one of an object, or
        of so much memory."""
        look, to_mpi = None, tag
        kind, count, nbytes = (
            (kinds.OBJECT, 1, 0) if memory is None else (memory.dtype.name, memory.count, memory.nbytes)
        )
        if self.tells_kinds and tag is not None:
            to_mpi = kinds.on_wire(tag, kind)
            if receives:
                look = partial(kinds.look_for_others, operation, kind, other, tag, self.fabric.messages.probe)
        if receives:
            what, ends = self._whence(other, tag), Ends(self._at_other_end(other), tag)
        else:
            what = f"was taken by {self._rank_named(other)} (tag {tag})"
            ends = Ends(targets=self._at_other_end(other), target_tag=tag)
        return About(Pending.message(operation, what, count, kind, ends, nbytes), to_mpi, look)

    def _rank_named(self, rank: int | None) -> str:
        if rank is None:
            return "any rank"
        return "nobody" if rank == self.fabric.nobody else f"rank {rank}"

    def _at_other_end(self, rank: int | None) -> Sequence[int]:
        """The ranks that may be at the other end of a message. None means any."""
        if rank is None:
            return range(self.size)
        return () if rank == self.fabric.nobody else (rank,)

    def _whence(self, of: int | None, tag: int | None) -> str:
        return f"came from {self._rank_named(of)} ({'any tag' if tag is None else f'tag {tag}'})"

    def _bound(self, pending: Pending, transfer: Transfer, receives: bool) -> Message:
        in_time, by_library = self.under_way.timeout is not None, self.fabric.messages.by_library
        return Message(pending, transfer, receives, in_time, pending.nbytes, by_library)


def no_object(tag: int | None, e: Exception) -> MessageError:
    """The error where something else came than an object."""
    return MessageError(f"recv_object: what came (tag {tag}) is no object: was an array sent? ({e})")


def _is(given: Any, name: int) -> bool:
    """Whether a rank or tag is this one of MPI's names. A bool, or a number of another type, is none."""
    return type(given) is int and given == name
