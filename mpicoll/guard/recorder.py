"""The last calls of one communicator, and a hash of all its calls so far. Always on.

A call costs a tuple in a ring. The hash is made when a ring is full, or when somebody asks, so that most of its cost is
paid once for many calls. Two ranks that have the same hash have made the same calls in the same order.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic
from types import CodeType, FrameType
from typing import Any

from mpicoll.calls.record import Record
from mpicoll.guard.sites import Site, is_library, site_of

__all__ = ["BROKEN", "FREED", "LENGTH", "OPEN", "Made", "Recorder"]

LENGTH = 256
"""Calls of a ring. Those of the ring before are kept, too."""
_HASHES = 4096
"""Rings of which the hash is known after their calls were forgotten."""

OPEN, FREED, BROKEN = "open", "freed", "broken"
"""A communicator can be used; all its ranks have given it back; a call ended midway, so that nothing is known of it."""

Entry = tuple[Record, CodeType, int]


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was made. The first call of a communicator has the ``number`` 0.

    ``begun`` is when it was first seen, in seconds of ``time.monotonic``: somebody looks now and then. To ask for the
    time in each call would cost as much as half of all else that is recorded."""

    number: int
    record: Record
    site: Site
    begun: float


class Recorder:
    """The calls of one communicator. One call is made at a time; any thread may read."""

    __slots__ = ("_before", "_first", "_hashes", "_looks", "_next", "_ring", "_turning", "state", "under_way")

    def __init__(self) -> None:
        self._ring: list[Entry] = [()] * LENGTH  # type: ignore[list-item]  # filled before it is read
        self._before: list[Entry] = []
        self._first = 0
        """The number of the ring's first call."""
        self._next = 0
        """Where the next call goes in the ring."""
        self._hashes: deque[bytes] = deque([b""], maxlen=_HASHES)
        """The hash before each ring; that of the current ring is the last."""
        self._turning = threading.Lock()
        self._looks: deque[tuple[int, float]] = deque(maxlen=LENGTH)
        """How many calls had begun at what time."""
        self.under_way = False
        """Whether the last call has begun and not ended. Whoever makes the call says when it ends."""
        self.state = OPEN
        """Whether more calls can come."""

    def begin(self, record: Record, frame: FrameType) -> None:
        """A call begins, from ``frame``."""
        code = frame.f_code
        caller: Any = frame
        try:  # what site_of does, in line for files that are known: every tenth of a microsecond counts here
            while is_library[code.co_filename]:
                caller = caller.f_back
                code = caller.f_code
            entry = record, code, caller.f_lasti
        except (KeyError, AttributeError):  # the file was not seen before, or there is no program above
            entry = record, *site_of(frame)
        at = self._next
        try:
            self._ring[at] = entry
        except IndexError:
            self._turn(entry)
            at = 0
        self._next = at + 1
        self.under_way = True

    def retract(self) -> None:
        """The last call has not been made after all: an argument was wrong."""
        self.under_way = False
        self._next -= 1

    def close(self) -> None:
        """No more calls can come. Unless the communicator was freed, a call may have ended midway."""
        self.under_way = False
        if self.state == OPEN:
            self.state = BROKEN

    def _turn(self, entry: Entry) -> None:
        """Begin a new ring with this call."""
        with self._turning:
            self._hashes.append(_hash(self._hashes[-1], self._ring))
            self._before, self._ring = self._ring, [entry] * LENGTH
            self._first += LENGTH
            self._next = 0

    @property
    def begun(self) -> int:
        """How many calls have begun."""
        with self._turning:
            return self._first + self._next

    def hash(self, calls: int) -> tuple[int, str] | None:
        """A number of calls, and the hash of so many first calls. It is the number that is asked for, or, if those
        calls are forgotten, the number of whole rings in it. None if that is forgotten, too."""
        with self._turning:
            rings, rest = divmod(calls, LENGTH)
            back = self._first // LENGTH - rings
            if back < 0:  # the ring is full, and the next call begins a new one
                return calls, _hash(self._hashes[-1], self._ring).hex()
            if back >= len(self._hashes):
                return None
            before, kept = self._hashes[-1 - back], (self._ring, self._before)[back][:rest] if back < 2 else []
            return calls - rest + len(kept), (_hash(before, kept) if kept else before).hex()

    def calls(self, first: int = 0) -> list[Made]:
        """The calls that are kept, from the number ``first``."""
        with self._turning:
            kept, start = [*self._before, *self._ring[: self._next]], self._first - len(self._before)
        looks = [*self._looks, (start + len(kept), monotonic())]
        made = []
        for number, (record, code, at) in enumerate(kept, start):
            begun = looks[bisect_right(looks, number, key=lambda look: look[0])][1]
            made.append(Made(number, record, (code, at), begun))
        return made[max(0, first - start) :]

    def look(self) -> int:
        """Note the time for the calls that have begun, and return how many have."""
        begun = self.begun
        if not self._looks or self._looks[-1][0] != begun:
            self._looks.append((begun, monotonic()))
        return begun


def _hash(before: bytes, entries: Sequence[Entry]) -> bytes:
    return blake2b(before + b"".join([entry[0].digest for entry in entries]), digest_size=8).digest()
