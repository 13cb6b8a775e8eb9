"""What is kept of a call: a description that is the same on all its ranks, and no array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

from mpicoll.calls.call import Call


class Record:
    """What is noted of a call. All calls of one plan share it.

    All ranks of a collective must have the same ``description``. What a rank may know better than others is beside
    it."""

    __slots__ = ("description", "digest", "dtype", "elements", "nbytes", "number", "operation", "root", "route")

    def __init__(
        self,
        operation: str,
        details: str = "",
        nbytes: int = 0,
        elements: int = 0,
        dtype: str = "",
        root: int | None = None,
    ) -> None:
        self.operation = operation
        """The name of the Communicator's method, as in ``allreduce``."""
        self.description = f"{operation} {details}" if details else operation
        """The call in words: the operation, and then its details, as in ``allreduce sum of 4 float32``."""
        self.nbytes, self.elements, self.dtype = nbytes, elements, dtype
        """What the longest array of the call has. ``elements`` is 0 where a rank does not know how many others have."""
        self.root = root
        """The root's rank, None if the call has no root."""
        self.route = ""
        """What carries it out, once that is chosen: as in ``native``, ``ring`` or ``staged:ring``."""
        self.digest = blake2b(self.description.encode(), digest_size=8).digest()
        """A hash of the description."""
        self.number = next(_numbers)
        for tell in told:
            tell(self.number, self.description)


_numbers = count(1)
told: list[Callable[[int, str], object]] = []
"""Told of each new record: its number in this process, and its description."""


class Ends(NamedTuple):
    """Which ranks may be at the other end of a message, and of both messages of a sendrecv."""

    sources: Sequence[int] = ()
    """The ranks from which a message may come."""
    source_tag: int | None = None
    """The tag of that message, None for any."""
    targets: Sequence[int] = ()
    """The ranks that may take a message."""
    target_tag: int | None = None
    """The tag of that message, None if there is none."""


class Pending(NamedTuple):
    """What one rank begins and later waits for: a message, or a collective that does not block.

    All messages of one plan share it."""

    operation: str
    what: str
    """What must happen: ``came from rank 0 (tag 0)``."""
    elements: int
    dtype: str
    missing: str
    """What is the matter while it has not happened: ``no message came from rank 0 (tag 0)``."""
    ends: Ends = Ends()

    @classmethod
    def message(cls, operation: str, what: str, elements: int, dtype: str, ends: Ends) -> Pending:
        return cls(operation, what, elements, dtype, f"no message {what}", ends)


Begun = tuple[Pending, float]
"""What was begun, and when, in seconds of ``time.monotonic``. Each time it is another object."""


def record_of(call: Call, algorithm: str | None, size: int, operation: str | None = None) -> Record:
    """The record of a call among ``size`` ranks. The ``operation`` is the call's own if none is given."""
    memory = call.send or call.recv
    elements = call.extent(size) if memory is not None and call.extent_is_common else 0
    dtype = "" if memory is None else str(memory.dtype)
    root = call.root if call.collective.rooted else None
    details = details_of(call, algorithm, size)
    return Record(operation or call.operation, details, call.nbytes(size), elements, dtype, root)


def details_of(call: Call, algorithm: str | None, size: int) -> str:
    """Reduction, elements, dtype, root, algorithm and counts of a call among ``size`` ranks."""
    parts = []
    if call.reduction is not None:
        parts.append(call.reduction.op.name)
    memory = call.send or call.recv
    if memory is not None:
        elements = f"{_given(call, call.extent(size), size)} " if call.extent_is_common else ""
        parts.append(f"of {elements}{memory.dtype}")
        if memory.device != "cpu":  # a call on a device's memory is cut in other pieces
            parts.append(f"on {memory.device.partition(':')[0]}")
    if call.uneven and call.extent_is_common:
        parts.append(f"counts {list(call.sendcounts or call.recvcounts or ())}")
    if call.collective.rooted:
        parts.append(f"root {call.root}")
    if algorithm is not None:
        parts.append(f"algorithm {algorithm}")
    return " ".join(parts)


def _given(call: Call, elements: int, size: int) -> int:
    """The elements that a rank gives, as its program says them. In a scatter, those that it gets."""
    table = call.collective
    own_block = table.gathers or (table.rooted and table.scatters)
    return elements // size if own_block and not call.uneven else elements
