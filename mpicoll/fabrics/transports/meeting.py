"""Where ranks of a node meet, and say where their arrays lie: a page of each rank, which all have mapped.

A rank comes by writing a number to its page, and waits until the others have written it, too. What it wrote before,
to any memory that they share, they read after it. On x86 a store is seen after all stores before it, and a load is
done before all loads after it (Intel's manual, volume 3, 8.2.2), so that plain stores and loads are enough. Long copies
may store past the cache. The C library orders these, and NumPy and torch take the interpreter's lock again after a long
loop, by an atomic instruction. Other processors do not promise that: there, no such page is made.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Hashable, Sequence

from mpicoll.machine.blocks import Place
from mpicoll.machine.patience import Patience
from mpicoll.machine.shared_memory import Block

__all__ = ["FROM", "Meeting", "Posted", "in_order"]

COME, FROM = 0, 1
"""Which words of a page say how often the rank has come, and on rank 0's page from which call on ranks say where their
arrays lie."""
_SLOTS = 8, 260
"""Where on a page a rank says what its arrays are. The two places take turns from one meeting to the next, because a
rank may come to the next one before others have read what it said in this one."""
_WORDS = 1 + 2 * len(Place._fields)
"""That a rank says of each call beside its version: a digest, and two places."""
MOST_ENDS = _SLOTS[1] - _SLOTS[0] - 1 - _WORDS
"""The most numbers that a rank can say besides, of where blocks begin and end."""
SPINS = 100
"""How often a rank looks before it lets others have the core between looks."""
MOST_PASSED_OVER = 64
"""The most calls of a kind that are passed over, one after another."""
LONG = 1 << 20
"""Bytes of a call that is never passed over. Shorter calls that are passed over, one after another, move no more than
that. To meet takes little beside it. (In an alltoallv, no rank knows how long the others' arrays are.)"""
KINDS = 1024
"""Kinds of calls that are remembered."""


def in_order() -> bool:
    """Whether other processes see this one's stores in order."""
    return os.uname().machine in ("x86_64", "AMD64", "i686")


class Posted:
    """What a rank says of its arrays in a call: a digest of the call, the places of input and output, and where blocks
    of the input begin and end if the other ranks cannot know that. Its ``version`` is a number that this process gives
    to nothing else, or 0 if they lie in memory of its own."""

    _last = 0

    def __init__(self, digest: bytes, source: Place | None, target: Place | None, ends: Sequence[int] = ()) -> None:
        self.words: memoryview | None = None
        self.version = 0
        if source is not None and target is not None:
            Posted._last += 1
            self.version = Posted._last
            self.words = memoryview(array("q", [_number(digest), *source, *target, *ends]))


class Meeting:
    """The pages of all ranks, as this one sees them."""

    def __init__(self, rank: int, pages: Sequence[Block], crowded: bool, meanwhile: Callable[[], object]) -> None:
        words = [page.data.cast("q") for page in pages]
        self.rank, self.size = rank, len(pages)
        self._mine, self.first = words[rank], words[0]
        self._others = [each for r, each in enumerate(words) if r != rank]
        self._words, self._meanwhile = words, meanwhile
        self._spins = 0 if crowded else SPINS
        self._come = 0
        self.calls = 0
        """The calls so far that might have been carried out where arrays lie, this one included."""
        self._begun = False
        self.wishes = False
        """Whether one of this rank's arrays lay in shared memory."""
        self._pauses: dict[Hashable, tuple[int, int]] = {}
        """For each kind of call that had ordinary arrays: how many calls are passed over, and how many still."""
        self._said: list[Posted | None] = [None, None]
        """What this rank's page says, in its two places."""

    def begins(self, lies: bool, all_depend: bool, kind: Hashable) -> bool:
        """Whether ranks say in this call where their arrays lie. They begin to, all at the same call, after the first
        one in which a rank's arrays lie in shared memory. Where calls of this kind had ordinary arrays, most of them
        are passed over: to meet takes as long as a short call. ``all_depend`` says whether what every rank gets in this
        call depends on this rank."""
        if not self._begun:
            self.wishes |= lies
            first = self.first[FROM]
            if first == 0 and self.wishes and all_depend:
                # The others have read this when this call is over, because it ends only after this rank has begun it.
                first = self.first[FROM] = self.calls + 1
            self._begun = 0 < first <= self.calls
            return self._begun
        if self._pauses:
            pause, left = self._pauses.get(kind, (0, 0))
            if left:
                self._pauses[kind] = pause, left - 1
                return False
        return True

    def pause(self, kind: Hashable, nbytes: int) -> None:
        """Pass over the next calls of this kind, of so many bytes: one at first, and then twice as many each time. All
        ranks call this at the same call, because all have read the same."""
        if nbytes >= LONG:
            return
        if len(self._pauses) >= KINDS:
            self._pauses.clear()
        most = min(MOST_PASSED_OVER, LONG // nbytes) if nbytes else MOST_PASSED_OVER
        pause = min(2 * self._pauses.get(kind, (0, 0))[0], most) or 1
        self._pauses[kind] = pause, pause

    def go_on(self, kind: Hashable) -> None:
        """Pass over no more calls of this kind. All ranks call this at the same call."""
        if self._pauses:
            self._pauses.pop(kind, None)

    def post(self, posted: Posted) -> None:
        """Say what this rank's arrays are, before it comes."""
        which = self._come % 2
        if posted is not self._said[which]:
            self._said[which], mine, at = posted, self._mine, _SLOTS[which]
            mine[at] = posted.version
            if posted.words is not None:
                mine[at + 1 : at + 1 + len(posted.words)] = posted.words

    def versions(self) -> list[int]:
        """What the other ranks have posted, once all have come."""
        at = _SLOTS[(self._come - 1) % 2]
        return [words[at] for words in self._others]

    def posted(self, rank: int) -> tuple[int, Place, Place]:
        """The digest of the call, and the places of its input and its output, as a rank has posted them."""
        at = _SLOTS[(self._come - 1) % 2] + 1
        digest, *words = self._words[rank][at : at + _WORDS].tolist()
        half = len(Place._fields)
        return digest, Place(*words[:half]), Place(*words[half:])

    def ends(self, rank: int) -> list[int]:
        """Where a rank's block for rank r begins, for each r, and where the last one ends, as it has posted them."""
        at = _SLOTS[(self._come - 1) % 2] + 1 + _WORDS
        found: list[int] = self._words[rank][at : at + self.size + 1].tolist()
        return found

    def come(self) -> None:
        """Come, and wait until all have."""
        self._come = turn = self._come + 1
        self._mine[COME] = turn
        for words in self._others:
            if words[COME] < turn:
                self._wait(words, turn)

    def _wait(self, words: memoryview, turn: int) -> None:
        for _ in range(self._spins):
            if words[COME] >= turn:
                return
        # MPI moves messages only while it is called, and the other rank may wait for one.
        patience = Patience(math.inf, self._meanwhile)
        while words[COME] < turn:
            patience.lasts()


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little", signed=True)
