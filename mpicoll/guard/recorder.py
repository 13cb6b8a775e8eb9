"""The last calls of one communicator, and a hash of all its calls so far. Always on.

A call costs a tuple in a ring. The hash is made when a ring is full, or when somebody asks, so that most of its cost is
paid once for many calls. Two ranks that have the same hash have made the same calls in the same order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic
from types import CodeType, FrameType

from mpicoll.calls.record import Record
from mpicoll.errors import StateError
from mpicoll.guard.sites import Site, known_programs, place_of, site_of

__all__ = ["BROKEN", "CLOSED", "FREED", "LENGTH", "OPEN", "Made", "Recorder"]

LENGTH = 256
"""Calls of a ring. Those of the ring before are kept, too."""
_RINGS = 1024
"""Rings of which the calls' digests are kept, 2 KiB each. A rank may be so far ahead of others."""

_BYTES = 8
"""Of a hash, and of a call's digest."""

OPEN, FREED, CLOSED, BROKEN = "open", "freed", "closed", "broken"
"""A communicator can be used; it was given back by all its ranks; this rank alone makes no more calls; a call ended
midway, so that nothing is known of it."""

Entry = tuple[Record, CodeType, int, float]


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was made. The first call of a communicator has the ``number`` 0. ``begun`` is in seconds of
    ``time.monotonic``."""

    number: int
    record: Record
    site: Site
    begun: float


class Recorder:
    """The calls of one communicator. One call is made at a time; any thread may read."""

    __slots__ = ("_before", "_first", "_hash", "_next", "_ring", "_rings", "_turning", "state", "under_way")

    def __init__(self) -> None:
        self._ring: list[Entry] = [()] * LENGTH  # type: ignore[list-item]  # filled before it is read
        self._before: list[Entry] = []
        self._first = 0
        """The number of the ring's first call."""
        self._next = 0
        """Where the next call goes in the ring."""
        self._hash = b""
        """The hash of all calls before the ring."""
        self._rings: deque[tuple[bytes, bytes]] = deque(maxlen=_RINGS)
        """Of each full ring before it, the last one at the end: the hash of all calls before it, and its digests."""
        self._turning = threading.Lock()
        self.under_way = False
        """Whether the last call has begun and not ended. Whoever makes the call says when it ends."""
        self.state = OPEN
        """Whether more calls can come."""

    def begin(self, record: Record, frame: FrameType) -> None:
        """A call begins, from ``frame``. Raises StateError if another thread's has not ended."""
        if self.under_way:
            self._check_within(record, frame)
        code = frame.f_code
        if code.co_filename in known_programs:
            entry = record, code, frame.f_lasti, monotonic()
        else:
            entry = record, *site_of(frame), monotonic()
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
        """No more calls can come. One that is under way ends midway."""
        if self.state == OPEN:
            self.state = BROKEN if self.under_way else CLOSED
        self.under_way = False

    def _check_within(self, record: Record, frame: FrameType) -> None:
        """Raise StateError unless this thread makes the call under way, and this one within it: an object may do so
        while it is pickled."""
        last, site = self.calls()[-1], site_of(frame)
        around: FrameType | None = frame
        while around is not None and (around.f_code, around.f_lasti) != site:
            around = around.f_back
        while around is not None:
            around = around.f_back
            if around is not None and (around.f_code, around.f_lasti) == last.site:
                return
        other = f"{last.record.words}, at {place_of(last.site)}"
        why = "A communicator makes one call at a time: give each thread its own"
        raise StateError(f"{record.words}: this communicator is in another call now: {other}. {why}")

    def _turn(self, entry: Entry) -> None:
        """Begin a new ring with this call."""
        with self._turning:
            digests = _digests(self._ring)
            self._rings.append((self._hash, digests))
            self._hash = _hash(self._hash, digests)
            self._before, self._ring = self._ring, [entry] * LENGTH
            self._first += LENGTH
            self._next = 0

    @property
    def begun(self) -> int:
        """How many calls have begun."""
        with self._turning:
            return self._first + self._next

    @property
    def last(self) -> Entry | None:
        """The call under way, None if there is none."""
        with self._turning:
            return self._ring[self._next - 1] if self.under_way and self._next else None

    def hash(self, calls: int) -> str | None:
        """The hash of so many first calls. None if they are forgotten, or not made yet."""
        with self._turning:
            ring, rest = divmod(calls, LENGTH)
            back = self._first // LENGTH - ring
            if calls > self._first + self._next or back > len(self._rings):
                return None
            if back <= 0:  # the ring may be full, and there is no next one yet
                before, digests = self._hash, _digests(self._ring[: calls - self._first])
            else:
                before, digests = self._rings[-back][0], self._rings[-back][1][: rest * _BYTES]
            return (_hash(before, digests) if digests else before).hex()

    def calls(self, first: int = 0) -> list[Made]:
        """The calls that are kept, from the number ``first``."""
        with self._turning:
            kept, start = [*self._before, *self._ring[: self._next]], self._first - len(self._before)
        numbered = [Made(start + i, e[0], (e[1], e[2]), e[3]) for i, e in enumerate(kept)]
        return [made for made in numbered if made.number >= first]


def _digests(entries: Sequence[Entry]) -> bytes:
    return b"".join([entry[0].digest for entry in entries])


def _hash(before: bytes, digests: bytes) -> bytes:
    return blake2b(before + digests, digest_size=_BYTES).digest()
