"""Long messages between ranks of a node, through memory that they share.

The sender has two slots for each peer. It copies a piece of the message into one of them and tells the peer. The peer
takes the piece from there, and tells the sender that the slot is free. Telling is a short MPI message: MPI waits for it
as for any other, and orders what each side does with the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.calls.plan import Plan, sequence
from mpicoll.errors import MessageError
from mpicoll.machine.shared_memory import Block, share
from mpicoll.transports.step import TAGS, Arrival, Held, Step
from mpicoll.transports.transport import Array, Region

__all__ = ["LEAST", "Slots", "Streams", "possible"]

LEAST = 16 << 10
"""Bytes of the shortest message that goes through shared memory."""
SLOT = 512 << 10
"""Bytes of a slot at most: a piece stays in the second-level cache until it is taken."""
LEAST_SLOT = 128 << 10
"""Bytes of a slot at least: with more and shorter pieces, telling takes longer than shared memory saves."""
MEMORY = 4 << 20
"""Bytes of a rank's slots for all its peers, at most."""
PAGE = 4096
SIGNAL, ANSWER = TAGS, TAGS + 1
"""The tags by which a peer is told that a piece is there, and that it was taken."""


def possible(comm: MPI.Intracomm) -> bool:
    """Whether these ranks of one node can pass messages through shared memory. Collective."""
    return comm.size > 1 and MEMORY // (2 * (comm.size - 1)) >= LEAST_SLOT and share(comm, PAGE) is not None


def _slot_bytes(size: int) -> int:
    """Bytes of a slot among so many ranks."""
    return min(SLOT, MEMORY // (2 * (size - 1)) // PAGE * PAGE)


class Slots:
    """Two slots for each pair of ranks, in the sender's block of shared memory."""

    def __init__(self, rank: int, blocks: Sequence[Block], nbytes: int) -> None:
        self._rank, self._blocks, self.nbytes = rank, blocks, nbytes

    @classmethod
    def among(cls, comm: MPI.Intracomm) -> Slots | None:
        """Collective among ranks for whom it is ``possible``; None if there is no memory left for it."""
        nbytes = _slot_bytes(comm.size)
        blocks = share(comm, 2 * (comm.size - 1) * nbytes)
        return None if blocks is None else cls(comm.rank, blocks, nbytes)

    def to(self, peer: int, turn: int) -> Block:
        """The slot into which this rank puts the piece that is ``peer``'s at this turn."""
        return self._slot(self._rank, peer, turn)

    def from_(self, peer: int, turn: int) -> Block:
        """The slot from which this rank takes the piece that ``peer`` puts there at this turn."""
        return self._slot(peer, self._rank, turn)

    def _slot(self, owner: int, peer: int, turn: int) -> Block:
        start = (2 * (peer - (peer > owner)) + turn % 2) * self.nbytes
        return self._blocks[owner][start : start + self.nbytes]


Combine = Callable[[Region, Array, Region], Plan]
"""What combines this rank's values with those in a slot, to a target."""


class Streams:
    """Adds long messages to steps: in each step one stream of pieces to each peer, and one from each.

    The two ends may have a message in different steps. Pieces are told of in their order, and take turns on the slots
    in that order, from the first of a schedule to the last."""

    def __init__(self, comm: MPI.Intracomm, operation: str, dtype: np.dtype[Any], slots: Slots, held: Held) -> None:
        self._comm, self._operation, self._dtype, self._slots, self._held = comm, operation, dtype, slots, held
        self._most = slots.nbytes // dtype.itemsize
        self._put: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()
        self.end_step()

    def end_step(self) -> None:
        """The next step has streams of its own."""
        self._outgoing: dict[int, _Stream] = {}
        self._incoming: dict[int, _Stream] = {}

    def take(self, region: Region) -> bool:
        """Whether the message is long enough."""
        return _nbytes(region) >= LEAST

    def send(self, step: Step, peer: int, region: Region) -> None:
        """Send the region."""
        if peer not in self._outgoing:
            self._outgoing[peer] = self._stream(step, peer, ANSWER, SIGNAL, ahead=2)
        for piece in self._cut(region):
            slot = self._elements(self._slots.to(peer, _next(self._put, peer)))
            copy = _copies((part, run) for run, part in _along(piece, slot))
            self._outgoing[peer].add(copy, _nbytes(region))

    def recv(self, step: Step, peer: int, region: Region) -> None:
        """Take the region in."""
        for piece in self._cut(region):
            self._take(step, peer, _copies(_along(piece, self._from(peer))), region)

    def recv_reduce(self, step: Step, peer: int, mine: Region, into: Region, combined: Combine) -> None:
        """Take a region in and combine it with ``mine``."""
        for ours, target in zip(self._cut(mine), self._cut(into), strict=True):
            self._take(step, peer, combined(ours, self._from(peer), target), into)

    def _from(self, peer: int) -> Array:
        """Where the next piece of this peer's will lie."""
        return self._elements(self._slots.from_(peer, _next(self._taken, peer)))

    def _take(self, step: Step, peer: int, action: Plan, message: Region) -> None:
        if peer not in self._incoming:
            self._incoming[peer] = self._stream(step, peer, SIGNAL, ANSWER, ahead=0)
        self._incoming[peer].add(action, _nbytes(message))

    def _stream(self, step: Step, peer: int, hears: int, tells: int, ahead: int) -> _Stream:
        word, words = np.zeros(1, np.int64), np.zeros((2, 1), np.int64)
        heard = self._held.request(self._comm.Recv_init(word, peer, hears))
        told = [self._held.request(self._comm.Send_init(each, peer, tells)) for each in words]
        stream = _Stream(f"{self._operation}: rank {peer}'s message", heard, word, told, words, ahead)
        step.receives.append(heard)
        step.arrivals.append(Arrival(heard, stream.hear, None))
        step.openings.append(stream.open)
        step.answers += told
        return stream

    def _elements(self, slot: Block) -> Array:
        return slot[: self._most * self._dtype.itemsize].view(self._dtype)

    def _cut(self, region: Region) -> Iterator[Region]:
        """The pieces of a message, each as long as a slot but for the last."""
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


def _along(piece: Region, slot: Array) -> Iterator[tuple[Array, Array]]:
    """The runs of a piece, and the part of a slot for each."""
    done = 0
    for run in piece:
        yield run, slot[done : done + run.size]
        done += run.size


def _copies(pairs: Iterator[tuple[Array, Array]]) -> Plan:
    return sequence(*(partial(np.copyto, target, source) for target, source in pairs))
