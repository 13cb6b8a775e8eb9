"""A message that is bound to its memory, or a collective that does not block: what makes it happen, and what is said
if it goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpicoll.arrays.buffers import Buffer
from mpicoll.communicator.engine import kinds
from mpicoll.errors import MessageError
from mpicoll.fabrics.fabric import Transfer
from mpicoll.supervise.record import Pending, Record

OVERHEAD = 4 << 10  # bytes that a message counts for besides its own: so many short ones are a long one


class Message:
    """A message that is bound to its memory: what makes it happen, and what is said of it. It holds no array."""

    __slots__ = ("by_library", "count", "kind", "meanwhile", "nbytes", "now", "pending", "receives", "transfer")

    def __init__(
        self, pending: Pending, transfer: Transfer, receives: bool, in_time: bool, nbytes: int, by_library: bool
    ) -> None:
        self.pending, self.transfer, self.receives, self.by_library = pending, transfer, receives, by_library
        self.nbytes = nbytes + OVERHEAD  # bytes that it counts for while nobody looks
        self.count = pending.elements
        self.kind = ""  # the kind that its tag must say, empty if tags say none
        self.meanwhile: Callable[[], None] | None = None  # looks, while it is waited for, whether it can come at all
        self.now = None if in_time else transfer.now
        """Makes it happen and returns when it is complete; None where it must be started and waited for, as where it
        must come ``in_time``."""

    def wrong(self, arrived: int | None, source: int) -> MessageError:
        """The error where so many elements came from ``source``."""
        what = "part of an element" if arrived is None else f"{arrived}"
        about = self.pending
        expected = f"expected {about.elements} elements of {about.dtype} from rank {source}"
        return MessageError(f"{about.operation}: {expected}; {what} arrived")

    def wrong_length(self, begun: object) -> MessageError:
        """The error where what was begun has come, and has not the length of its array."""
        return self.wrong(self.transfer.arrived(begun), self.transfer.source(begun))

    def wrong_kind(self, tag: int, source: int) -> MessageError:
        """The error where a message with this tag of MPI's came from ``source``, and is of another kind."""
        expected = f"expected {self.kind} from rank {source} (tag {kinds.of_program(tag)})"
        return MessageError(f"{self.pending.operation}: {expected}; {kinds.kind_of(tag)} arrived")

    def failed(self, e: BaseException) -> MessageError:
        """The error where the MPI library reports ``e``."""
        about, hint = self.pending, ""
        if self.receives:
            behind = " If so, memory behind the array may be overwritten" if self.transfer.overruns else ""
            hint = f" (the array has {about.elements} elements of {about.dtype}: was more sent?{behind})"
        reported = str(e).partition(", error stack")[0]  # the stack of MPICH's own functions is in the cause
        return MessageError(f"{about.operation}: the MPI library reports: {reported}{hint}")


class Startable(NamedTuple):
    """What is kept of a collective that does not block: its arguments are right."""

    record: Record
    pending: Pending
    message: Message | None  # what starts it, None where a thread carries it out
    on_device: Sequence[Buffer] = ()  # its memory on devices. Then it is not kept
