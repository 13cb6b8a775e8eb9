"""The last calls of one communicator, and a hash of all its calls so far. Always on.

What is kept of a call is a record: an operation, a description that is the same on all ranks, and a digest of that. It
has no array. The call is noted in a ring, with its place in the program. The hash is made when a ring is full, or when
somebody asks. Two ranks that have the same hash have made the same calls in the same order."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b, sha256
from itertools import count
from sys import _getframe
from time import monotonic
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from mpicoll.errors import StateError
from mpicoll.launch import board
from mpicoll.node.loaded import kernel
from mpicoll.supervise.messages import Ends
from mpicoll.supervise.sites import Site, is_library, place_of, site_of

LENGTH = 256
"""Calls of a ring. Those of the ring before are kept, too."""
_RINGS = 1024
"""Rings of which the calls' digests are kept, 2 KiB each. A rank may be so far ahead of others."""

_BYTES = 8  # the length of a hash, and of a call's digest

OPEN, FREED, CLOSED, BROKEN = "open", "freed", "closed", "broken"
"""It can be used; all ranks gave it back; this rank makes no more calls; a call ended midway: nothing is known."""

DONE, UNDER_WAY, ENDED_MIDWAY = "done", "under way", "ended midway"
"""What the files say of a call. The last one means that it raised an exception."""

_numbers = count(1)


class Record:
    """What is noted of a call. All calls of one plan share it. All ranks of a collective must have the same
    ``description``. What a rank may know better than others is beside it."""

    __slots__ = ("description", "digest", "dtype", "elements", "nbytes", "number", "operation", "root", "route")

    def __init__(
        self,
        operation: str,
        details: str = "",
        nbytes: int = 0,
        elements: int = 0,
        dtype: str = "",
        root: int | None = None,
        name: str | None = None,
    ) -> None:
        self.operation = operation  # the name of the Communicator's method, as in ``allreduce``
        self.description = f"{name or operation} {details}".rstrip()
        """The call in words, with the ``name`` by which the program calls it: ``allreduce sum of 4 float32``."""
        self.nbytes, self.elements, self.dtype = nbytes, elements, dtype
        """What the longest array of the call has. ``elements`` is 0 where a rank does not know how many others have."""
        self.root = root  # the root's rank, None if the call has no root
        self.route = ""  # what carries it out, once that is chosen: as in ``native``, ``ring`` or ``staged:ring``
        self.digest = blake2b(self.description.encode(), digest_size=8).digest()  # a hash of the description
        self.number = next(_numbers)
        board.note(self.number, self.description)


class Pending(NamedTuple):
    """What one rank begins and later waits for: a message, or a collective that does not block.

    All messages of one plan share it."""

    operation: str
    what: str  # what must happen: ``came from rank 0 (tag 0)``
    elements: int
    dtype: str
    missing: str  # what is the matter while it has not happened: ``no message came from rank 0 (tag 0)``
    ends: Ends = Ends()
    nbytes: int = 0

    @classmethod
    def message(cls, operation: str, what: str, elements: int, dtype: str, ends: Ends, nbytes: int = 0) -> Pending:
        return cls(operation, what, elements, dtype, f"no message {what}", ends, nbytes)

    @property
    def description(self) -> str:
        return f"{self.operation}: {self.what}"

    def is_message(self) -> bool:
        """Whether it is a message, and no collective."""
        return bool(self.ends.sources or self.ends.targets)


Begun = tuple[Pending, float]
"""What was begun, and when, in seconds of ``time.monotonic``. Each time it is another object."""


class Waits(list[Begun]):
    """What threads wait for besides collectives that block. The first one has waited for longest."""

    __slots__ = ("_followed", "name", "tape", "unreceived")

    def __init__(self, begun: Iterable[Begun] = ()) -> None:
        super().__init__(begun)
        self.name = ""  # the communicator's
        self.tape: Tape | None = None
        self._followed: deque[tuple[Begun, Callable[[], bool]]] = deque()
        self.unreceived: Callable[[bool], Sequence[tuple[int, int, int]]] = lambda _: ()
        """The source, the tag and the bytes of each message that has come and that no receive has asked for. With True,
        this looks for more, which the thread that makes the calls may do."""

    def follow(self, begun: Begun, is_complete: Callable[[], bool]) -> None:
        """A GPU waits for this, after all that it waited for before, while the program goes on."""
        list.append(self, begun)  # no tape notes it: the program does not wait
        self._followed.append((begun, is_complete))

    def look(self) -> None:
        """Forget what a GPU has waited for. One thread alone looks."""
        while self._followed and self._followed[0][1]():
            list.remove(self, self._followed.popleft()[0])

    def is_complete(self, begun: Begun) -> None:
        """Nobody had to wait for this: a test has shown that it is complete."""


class Made(NamedTuple):
    """A call that was made. The first call of a communicator has the ``number`` 0.

    ``begun`` is when it was first seen, in seconds of ``time.monotonic``: somebody looks now and then. To ask for the
    time in each call would cost as much as half of all else that is recorded."""

    number: int
    record: Record
    site: Site
    begun: float


class _PlainRing:
    """The last calls, noted in Python. The kernel has a type of the same interface."""

    __slots__ = ("_begun", "_first", "_made", "_thread", "_under_way", "messages", "taped")

    def __init__(self) -> None:
        self._begun = 0
        self._first = 0  # the number of the ring's first call
        self._made: list[Any] = [None] * (2 * LENGTH)  # by their numbers, this ring's calls and those of the one before
        self._thread = 0  # the number of the last call's thread
        self._under_way = self.taped = False
        """Of the one below; and whether a tape notes when each call begins and ends."""
        self.messages: Sequence[Begun] = deque(maxlen=LENGTH)  # the last messages that were begun

    @property
    def under_way(self) -> bool:
        """Whether the last call has begun and not ended. Who waits for one that does not block says so meanwhile."""
        return self._under_way

    @under_way.setter
    def under_way(self: Any, now: bool) -> None:
        before, self._under_way = self._under_way, now
        if self.taped and now != before:
            (self._tape_wait if now else self._tape_end)()

    def begin_message(self: Any, pending: Pending) -> None:
        self.messages.append((pending, monotonic()))
        if self.taped:
            self._tape_message(pending)

    def begin(self: Any, record: Record) -> None:
        """A call begins. Raises StateError if another thread's call has not ended."""
        if self.under_way and self._thread != threading.get_ident():
            self._refuse(record)
        code, place = self._found()
        if self._begun - self._first >= LENGTH:
            self._turn()
        self._made[self._begun % (2 * LENGTH)] = record, code, place
        self._begun, self._thread, self._under_way = self._begun + 1, threading.get_ident(), True
        _last[0] = record.number
        if self.taped:
            self._tape_begin()

    def move(self, code: CodeType, place: int) -> None:
        """The last call comes from there."""
        at = (self._begun - 1) % (2 * LENGTH)
        self._made[at] = self._made[at][0], code, place

    def take_back(self) -> None:
        """The last call has not been made after all."""
        self._begun -= 1

    def kept(self) -> list[tuple[Record, CodeType, int]]:
        """The calls of the ring before and of this one: what was called, and where."""
        return [self._made[i % (2 * LENGTH)] for i in range(max(0, self._first - LENGTH), self._begun)]

    def digests(self, many: int) -> bytes:
        """Those of the ring's first calls."""
        return b"".join([record.digest for record, _, _ in self.kept()[min(self._first, LENGTH) :][:many]])


if TYPE_CHECKING:
    from mpicoll.supervise.tape import Tape

    _Ring = _PlainRing
else:
    _Ring = _PlainRing if kernel is None else kernel.Ring


class Recorder(_Ring):
    """The calls of one communicator. One call is made at a time; any thread may read."""

    __slots__ = (
        "_hash", "_looks", "_rings", "_tape", "_tape_begin", "_tape_end",
        "_tape_message", "_tape_wait", "_turning", "_turns", "name", "state", "unsure",
    )  # fmt: skip

    _tape_begin: Callable[[], None]
    _tape_end: Callable[[], None]
    _tape_wait: Callable[[], None]
    _tape_message: Callable[[Pending], None]

    def __init__(self) -> None:
        super().__init__()
        self._hash = b""  # the hash of all calls before the ring
        self._rings: deque[tuple[bytes, bytes]] = deque(maxlen=_RINGS)
        """The full rings before it, the newest last: the hash of all calls before a ring, and the ring's digests."""
        self._turning, self._turns = threading.RLock(), False
        self._looks: deque[tuple[int, float]] = deque(maxlen=LENGTH)  # how many calls had begun at what time
        self.unsure: set[int] = set()  # the numbers of calls on which the ranks agree later, and have not agreed yet
        self.state = OPEN  # whether more calls can come
        self.name = ""  # the communicator's, once it is watched
        self._tape: Tape | None = None

    def note_on(self, tape: Tape | None) -> None:
        """From now on, note on this tape when each call begins and ends."""
        self._tape = tape
        if tape is None:  # another thread may be about to tell the last one, which is kept no longer
            self._tape_begin = self._tape_end = self._tape_wait = self._tape_message = nothing
        else:
            self._tape_begin = partial(tape.collective_begins, self)
            self._tape_end = partial(tape.collective_returns, self, DONE)
            self._tape_wait = partial(tape.wait_for_last, self)
            self._tape_message = partial(tape.message_begins, self)
        self.taped = tape is not None

    def _found(self) -> Site:
        """The site of the program that has led to the caller."""
        try:
            frame = _getframe(1)
        except ValueError:  # C has called, as where atexit calls a method of a communicator
            frame = _getframe()
        return site_of(frame)[0]

    def was_handed_in(self, site: Site, when: float | None) -> None:
        """The program has handed in the last call there and then, whoever carries it out now."""
        self.move(*site)
        if self._tape is not None:
            self._tape.was_handed_in(self, site, when)

    def retract(self) -> None:
        """The last call has not been made after all: it was refused before anything was sent."""
        if self._tape is not None:
            self._tape.collective_returns(self, None)
        self.under_way = False
        self.take_back()

    def close(self, goes_on: bool = False) -> None:
        """No more calls can come. One that is under way ends midway, unless another thread ``goes_on`` with it."""
        if self.state == OPEN:
            self.state = BROKEN if self.under_way else CLOSED
        if not goes_on:
            if self._tape is not None:
                if self.under_way:
                    self._tape.collective_returns(self, ENDED_MIDWAY)
                self._tape.last.pop(self, None)
            self.under_way = False

    def last(self) -> tuple[int, Record, Site]:
        """The number of the last call, what was called, and where."""
        record, code, place = self.kept()[-1]
        return self._begun - 1, record, (code, place)

    def _refuse(self, record: Record) -> None:
        _, last, site = self.last()
        this = f"{record.description}: this communicator is in another call now"
        other = f"{last.description}, at {place_of(site)}"
        raise StateError(f"{this}: {other}. A communicator makes one call at a time: give each thread its own")

    def _turn(self) -> None:
        with self._turning:
            if self._turns:  # the handler of a signal makes a call: there is room for it
                return
            self._turns = True
            try:
                digests = self.digests(LENGTH)
                after = _hash(self._hash, digests)
                self._rings.append((self._hash, digests))
                self._hash, self._first = after, self._first + LENGTH
            finally:
                self._turns = False

    @property
    def begun(self) -> int:
        return self._begun

    def hash(self, calls: int) -> str | None:
        """The hash of so many first calls. None if they are forgotten, or not made yet."""
        with self._turning:
            ring, rest = divmod(calls, LENGTH)
            back = self._first // LENGTH - ring
            if calls > self._begun or back > len(self._rings):
                return None
            if back <= 0:  # the ring may be full, and there is no next one yet
                before, digests = self._hash, self.digests(calls - self._first)
            else:
                before, digests = self._rings[-back][0], self._rings[-back][1][: rest * _BYTES]
            return (_hash(before, digests) if digests else before).hex()

    def calls(self, first: int = 0) -> list[Made]:
        """The calls that are kept, from the number ``first``."""
        with self._turning:
            kept, start = self.kept(), max(0, self._first - LENGTH)
        looks = [*self._looks, (start + len(kept), monotonic())]
        made = []
        for number, (record, code, place) in enumerate(kept, start):
            begun = looks[bisect_right(looks, number, key=lambda look: look[0])][1]
            made.append(Made(number, record, (code, place), begun))
        return made[max(0, first - start) :]

    def look(self) -> int:
        """Note the time for the calls that have begun, and return how many have."""
        begun = self.begun
        if not self._looks or self._looks[-1][0] != begun:
            self._looks.append((begun, monotonic()))
        return begun


def nothing(*_: object) -> None:
    """In the place of what a tape is told."""


def _hash(before: bytes, digests: bytes) -> bytes:
    return sha256(before + digests).digest()[:_BYTES]  # processors have instructions for it


_last = board.last
if kernel is not None:
    kernel.prepare(is_library, _last)
