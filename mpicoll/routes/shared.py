"""Long messages between ranks of a node, through memory that they share.

The sender copies a piece into one of two places that it has for that peer, and tells it; the peer combines it with its
own from there, and tells the sender that the place is free. Telling is an MPI message without content: the MPI waits as
it does for any other message, and orders what each side does with the memory. Short messages are MPI's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.dtypes import Reduction
from mpicoll.machine.shared_memory import Block, share
from mpicoll.plan import Plan, sequence
from mpicoll.routes.persistent import TAGS, Arrival, Persistent
from mpicoll.routes.spaces import Array, Region

__all__ = ["LEAST", "Places", "possible", "route"]

LEAST = 16 << 10
"""Bytes of a message from which on it goes through shared memory."""
PLACE = 512 << 10
"""Bytes of a piece at most: it stays in the second-level cache until it is taken."""
MEMORY = 2 << 20
"""Bytes of a rank's places for all its peers, at most."""
PAGE = 4096


def possible(comm: MPI.Intracomm) -> bool:
    """Whether these ranks of one node can pass messages through shared memory. Collective."""
    return _place(comm.size) >= min(LEAST, PLACE) and share(comm, PAGE) is not None


def _place(size: int) -> int:
    """Bytes of a place among so many ranks."""
    return 0 if size == 1 else min(PLACE, MEMORY // (2 * (size - 1)) // PAGE * PAGE)


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
    """Collects each step's messages, the long ones as streams of pieces, one to and one from each peer."""

    def __init__(
        self, comm: MPI.Intracomm, reduction: Reduction | None, dtype: np.dtype[Any], staging: Array, places: Places
    ) -> None:
        self._places, self._dtype = places, dtype
        self._most = places.nbytes // dtype.itemsize
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
            tag = self._tag_to(peer)
            self._outgoing[peer] = self._stream(
                self._comm.Recv_init([None, 0, MPI.BYTE], peer, TAGS + tag),
                self._comm.Send_init([None, 0, MPI.BYTE], peer, tag),
                ahead=2,
            )
        actions = self._outgoing[peer].actions
        for piece in self._cut(region):
            place = self._elements(self._places.to(peer, len(actions)))
            actions.append(_copies((p, run) for run, p in _along(piece, place)))

    def recv(self, peer: int, region: Region) -> None:
        if not _is_long(region):
            super().recv(peer, region)
            return
        actions = self._from(peer).actions
        for piece in self._cut(region):
            place = self._elements(self._places.from_(peer, len(actions)))
            actions.append(_copies(_along(piece, place)))

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        if not _is_long(into):
            super().recv_reduce(peer, mine, into, mine_first)
            return
        actions = self._from(peer).actions
        for ours, target in zip(self._cut(mine), self._cut(into), strict=True):
            place = self._elements(self._places.from_(peer, len(actions)))
            actions.append(self._combined(ours, place, target, mine_first))

    def _from(self, peer: int) -> _Stream:
        if peer not in self._incoming:
            tag = self._tag_from(peer)
            self._incoming[peer] = self._stream(
                self._comm.Recv_init([None, 0, MPI.BYTE], peer, tag),
                self._comm.Send_init([None, 0, MPI.BYTE], peer, TAGS + tag),
                ahead=0,
            )
        return self._incoming[peer]

    def _stream(self, heard: MPI.Prequest, told: MPI.Prequest, ahead: int) -> _Stream:
        stream = _Stream(self._kept(heard), self._kept(told), ahead)
        self._first.append(heard)
        self._arrivals.append(Arrival(heard, stream.hear, None))
        self._opens.append(stream.open)
        self._answers.append(told)
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
    comm: MPI.Intracomm, reduction: Reduction | None, dtype: np.dtype[Any], staging: Array, places: Places | None
) -> Persistent:
    """Messages of elements of ``dtype``, the long ones through ``places``, if there are any."""
    if places is None:
        return Persistent(comm, reduction, dtype, staging)
    return Shared(comm, reduction, dtype, staging, places)


class _Stream:
    """Pieces between this rank and a peer, in one step. This rank does its part of the first ``ahead`` at once, and of
    a later one when it hears of the peer again; after each it tells the peer."""

    def __init__(self, heard: MPI.Prequest, told: MPI.Prequest, ahead: int) -> None:
        self.actions: list[Plan] = []
        self._listen, self._tell, self._wait = heard.Start, told.Start, told.Wait
        self._ahead = ahead

    def open(self) -> None:
        self._done = self._heard = 0
        for _ in self.actions[: self._ahead]:
            self._act()

    def hear(self) -> None:
        self._heard += 1
        if self._heard < len(self.actions):
            self._listen()
        if self._done < len(self.actions):
            self._act()

    def _act(self) -> None:
        self.actions[self._done]()
        if self._done:
            self._wait()  # for the last time that it was told, which it heard long since
        self._tell()
        self._done += 1


def _is_long(region: Region) -> bool:
    return sum(run.nbytes for run in region) >= LEAST


def _along(piece: Region, place: Array) -> Iterator[tuple[Array, Array]]:
    """The runs of a piece, and the part of a place for each."""
    done = 0
    for run in piece:
        yield run, place[done : done + run.size]
        done += run.size


def _copies(pairs: Iterator[tuple[Array, Array]]) -> Plan:
    return sequence(*(partial(np.copyto, target, source) for target, source in pairs))
