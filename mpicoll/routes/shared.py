"""Long messages between ranks of a node, through memory that they share.

The sender copies a piece into one of two places that it has for that peer, and tells it; the peer combines it with its
own from there, and tells the sender that the place is free. Telling is a short MPI message: the MPI waits as it does
for any other, and orders what each side does with the memory. Short messages are MPI's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.dtypes import Reduction
from mpicoll.errors import MessageError
from mpicoll.machine.shared_memory import Block, share
from mpicoll.plan import Plan, sequence
from mpicoll.routes.persistent import TAGS, Arrival, Persistent
from mpicoll.routes.spaces import Array, Region

__all__ = ["LEAST", "Places", "possible", "route"]

LEAST = 16 << 10
"""Bytes of a message from which on it goes through shared memory."""
PLACE = 512 << 10
"""Bytes of a piece at most: it stays in the second-level cache until it is taken."""
WORTH = 128 << 10
"""Bytes of a place at least: with more and shorter pieces, telling takes longer than it saves."""
MEMORY = 4 << 20
"""Bytes of a rank's places for all its peers, at most."""
PAGE = 4096
SIGNAL, ANSWER = TAGS, TAGS + 1
"""The tags by which a peer is told that a piece is there, and that it was taken."""


def possible(comm: MPI.Intracomm) -> bool:
    """Whether these ranks of one node can pass messages through shared memory. Collective."""
    return comm.size > 1 and MEMORY // (2 * (comm.size - 1)) >= WORTH and share(comm, PAGE) is not None


def _place(size: int) -> int:
    """Bytes of a place among so many ranks."""
    return min(PLACE, MEMORY // (2 * (size - 1)) // PAGE * PAGE)


class Places:
    """Two places for each pair of ranks, in the sender's block of shared memory."""

    def __init__(self, rank: int, blocks: Sequence[Block], nbytes: int) -> None:
        self._rank, self._blocks, self.nbytes = rank, blocks, nbytes

    @classmethod
    def among(cls, comm: MPI.Intracomm) -> Places | None:
        """Collective among ranks for whom it is ``possible``; None if there is no memory left for it."""
        nbytes = _place(comm.size)
        blocks = share(comm, 2 * (comm.size - 1) * nbytes)
        return None if blocks is None else cls(comm.rank, blocks, nbytes)

    def to(self, peer: int, turn: int) -> Block:
        """Where this rank puts what ``peer`` takes."""
        return self._place(self._rank, peer, turn)

    def from_(self, peer: int, turn: int) -> Block:
        """Where this rank takes what ``peer`` puts there."""
        return self._place(peer, self._rank, turn)

    def _place(self, owner: int, peer: int, turn: int) -> Block:
        start = (2 * (peer - (peer > owner)) + turn % 2) * self.nbytes
        return self._blocks[owner][start : start + self.nbytes]


class Shared(Persistent):
    """Collects each step's messages, the long ones as streams of pieces, one to and one from each peer.

    The two ends may have a message in different steps: pieces are told of in their order, and take turns on the places
    in it, from the first of a schedule to the last."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        operation: str,
        reduction: Reduction | None,
        dtype: np.dtype[Any],
        staging: Array,
        places: Places,
    ) -> None:
        self._operation, self._places, self._dtype = operation, places, dtype
        self._most = places.nbytes // dtype.itemsize
        self._put: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()
        super().__init__(comm, reduction, dtype, staging)

    def _begin_step(self) -> None:
        super()._begin_step()
        self._outgoing: dict[int, _Stream] = {}
        self._incoming: dict[int, _Stream] = {}

    def send(self, peer: int, region: Region) -> None:
        if not _is_long(region):
            super().send(peer, region)
            return
        if peer not in self._outgoing:
            self._outgoing[peer] = self._stream(peer, ANSWER, SIGNAL, ahead=2)
        for piece in self._cut(region):
            place = self._elements(self._places.to(peer, _next(self._put, peer)))
            self._outgoing[peer].add(_copies((p, run) for run, p in _along(piece, place)), _nbytes(region))

    def recv(self, peer: int, region: Region) -> None:
        if not _is_long(region):
            super().recv(peer, region)
            return
        for piece in self._cut(region):
            self._take(peer, _copies(_along(piece, self._from(peer))), region)

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        if not _is_long(into):
            super().recv_reduce(peer, mine, into, mine_first)
            return
        for ours, target in zip(self._cut(mine), self._cut(into), strict=True):
            self._take(peer, self._combined(ours, self._from(peer), target, mine_first), into)

    def _from(self, peer: int) -> Array:
        """Where the next piece of this peer's will lie."""
        return self._elements(self._places.from_(peer, _next(self._taken, peer)))

    def _take(self, peer: int, action: Plan, message: Region) -> None:
        if peer not in self._incoming:
            self._incoming[peer] = self._stream(peer, SIGNAL, ANSWER, ahead=0)
        self._incoming[peer].add(action, _nbytes(message))

    def _stream(self, peer: int, hears: int, tells: int, ahead: int) -> _Stream:
        word, words = np.zeros(1, np.int64), np.zeros((2, 1), np.int64)
        heard = self._kept(self._comm.Recv_init(word, peer, hears))
        told = [self._kept(self._comm.Send_init(each, peer, tells)) for each in words]
        stream = _Stream(f"{self._operation}: rank {peer}'s message", heard, word, told, words, ahead)
        self._first.append(heard)
        self._arrivals.append(Arrival(heard, stream.hear, None))
        self._opens.append(stream.open)
        self._answers += told
        return stream

    def _elements(self, place: Block) -> Array:
        return place[: self._most * self._dtype.itemsize].view(self._dtype)

    def _cut(self, region: Region) -> Iterator[Region]:
        """The pieces of a message, each as long as a place but for the last."""
        room = self._most
        piece: Region = []
        for run in region:
            done = 0
            while done < run.size:
                piece.append(run[done : done + room])
                done += piece[-1].size
                room -= piece[-1].size
                if room == 0:
                    yield piece
                    piece, room = [], self._most
        if piece:
            yield piece


def route(
    comm: MPI.Intracomm,
    operation: str,
    reduction: Reduction | None,
    dtype: np.dtype[Any],
    staging: Array,
    places: Places | None,
) -> Persistent:
    """Messages of elements of ``dtype``, the long ones through ``places``, if there are any."""
    if places is None:
        return Persistent(comm, reduction, dtype, staging)
    return Shared(comm, operation, reduction, dtype, staging, places)


class _Stream:
    """Pieces between this rank and a peer, in one step. This rank does its part of the first ``ahead`` at once, and of
    a later one when it hears of the peer again; after each it tells the peer, how long the message is besides."""

    def __init__(
        self, what: str, heard: MPI.Prequest, word: Array, told: Sequence[MPI.Prequest], words: Array, ahead: int
    ) -> None:
        self._what, self._ahead = what, ahead
        self._actions: list[tuple[Plan, int]] = []
        self._listen, self._word = heard.Start, word
        self._tell = [(request.Wait, request.Start, each) for request, each in zip(told, words, strict=True)]

    def add(self, action: Plan, nbytes: int) -> None:
        """The next piece, of a message of so many bytes."""
        self._actions.append((action, nbytes))

    def open(self) -> None:
        self._done = self._heard = 0
        for _ in self._actions[: self._ahead]:
            self._act()

    def hear(self) -> None:
        nbytes = self._actions[self._heard][1]
        if self._word[0] != nbytes:
            raise MessageError(f"{self._what}: expected {nbytes} bytes; given {self._word[0]}")
        self._heard += 1
        if self._heard < len(self._actions):
            self._listen()
        if self._done < len(self._actions):
            self._act()

    def _act(self) -> None:
        action, nbytes = self._actions[self._done]
        action()
        wait, tell, word = self._tell[self._done % 2]
        if self._done >= 2:
            wait()  # for what it was told two pieces ago, which it has answered since
        word[0] = nbytes
        tell()
        self._done += 1


def _next(counts: Counter[int], peer: int) -> int:
    counts[peer] += 1
    return counts[peer] - 1


def _nbytes(region: Region) -> int:
    return sum(run.nbytes for run in region)


def _is_long(region: Region) -> bool:
    return _nbytes(region) >= LEAST


def _along(piece: Region, place: Array) -> Iterator[tuple[Array, Array]]:
    """The runs of a piece, and the part of a place for each."""
    done = 0
    for run in piece:
        yield run, place[done : done + run.size]
        done += run.size


def _copies(pairs: Iterator[tuple[Array, Array]]) -> Plan:
    return sequence(*(partial(np.copyto, target, source) for target, source in pairs))
