"""Long messages between ranks of a node, through memory that they share.

The sender has two slots for each peer. It copies a piece of the message into one of them and sends the peer a signal.
The peer takes the piece from the slot, may overwrite it (``mpicoll/machine/caches.py``), and sends an answer: the slot
is free. Signals and answers are short MPI messages. So MPI does the waiting, and what one rank writes before it sends a
signal the other reads after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.calls.plan import Plan, sequence
from mpicoll.errors import MessageError
from mpicoll.fabrics.transports.step import TAGS, Arrival, Held, Step
from mpicoll.fabrics.transports.transport import Array, Region
from mpicoll.machine.caches import overwritten
from mpicoll.machine.shared_memory import Block, share

__all__ = ["LEAST", "Slots", "Streams", "has_room", "pages"]

LEAST = 16 << 10
"""Bytes of the shortest message that goes through shared memory."""
SLOT = 512 << 10
"""The most bytes in a slot: a piece of that length stays in the second-level cache until it is taken."""
LEAST_SLOT = 128 << 10
"""The fewest bytes in a slot: with more and shorter pieces, the signals take longer than shared memory saves."""
MEMORY = 4 << 20
"""The most bytes in a rank's slots for all its peers together."""
PAGE = 4096
SIGNAL, ANSWER = TAGS, TAGS + 1
"""The tags of the messages that say that a piece is in a slot, and that it was taken."""


def pages(comm: MPI.Intracomm) -> list[Block] | None:
    """A page of each of these ranks of one node. None if they cannot share memory. Collective."""
    return share(comm, PAGE) if comm.size > 1 else None


def has_room(size: int) -> bool:
    """Whether messages among so many ranks can pass through shared memory."""
    return MEMORY // (2 * (size - 1)) >= LEAST_SLOT


def _slot_bytes(size: int) -> int:
    """The bytes in a slot among so many ranks."""
    return min(SLOT, MEMORY // (2 * (size - 1)) // PAGE * PAGE)


class Slots:
    """Two slots for each pair of ranks, in the sender's block of shared memory."""

    def __init__(self, blocks: Sequence[Block], nbytes: int) -> None:
        self._blocks, self.nbytes = blocks, nbytes

    @classmethod
    def among(cls, comm: MPI.Intracomm, besides: int = 0) -> tuple[Slots, list[Block]] | None:
        """The slots of these ranks, who have ``pages``, and so many bytes of each rank ``besides``. None if a rank has
        no memory left. Collective."""
        nbytes = _slot_bytes(comm.size)
        of_slots = 2 * (comm.size - 1) * nbytes
        blocks = share(comm, of_slots + besides)
        if blocks is None:
            return None
        return cls([block[:of_slots] for block in blocks], nbytes), [block[of_slots:] for block in blocks]

    def slot(self, source: int, dest: int, turn: int) -> Block:
        """The slot through which piece number ``turn`` goes from one rank to another."""
        index = dest - 1 if dest > source else dest  # a rank has no slots for itself
        start = (2 * index + turn % 2) * self.nbytes
        return self._blocks[source][start : start + self.nbytes]


Combine = Callable[[Region, Array, Region], Plan]
"""Gives the plan that combines this rank's values with those in a slot, and writes the results to a target."""


class Streams:
    """Adds long messages to a transport's steps: in each step one stream of pieces to each peer, and one from each.

    Sender and receiver may have a message in different steps. That does no harm: both number the pieces between them
    from the first one of the schedule to the last, and a piece's number says which slot it is in."""

    def __init__(self, comm: MPI.Intracomm, operation: str, dtype: np.dtype[Any], slots: Slots, held: Held) -> None:
        self._comm, self._operation, self._dtype, self._slots, self._held = comm, operation, dtype, slots, held
        self._slot_elements = slots.nbytes // dtype.itemsize
        # The numbers of pieces to each peer, and from it.
        self._put: defaultdict[int, count[int]] = defaultdict(count)
        self._taken: defaultdict[int, count[int]] = defaultdict(count)
        self._outgoing: dict[int, _Stream] = {}
        self._incoming: dict[int, _Stream] = {}

    def end_step(self) -> None:
        """Begin new streams with the next message: they belong to the next step."""
        self._outgoing, self._incoming = {}, {}

    def carries(self, region: Region) -> bool:
        """Whether a message of this region is long enough to go through shared memory, and has room there."""
        return _nbytes(region) >= LEAST and self._slot_elements > 0

    def send(self, step: Step, peer: int, region: Region) -> None:
        """Send the region to the peer."""
        if peer not in self._outgoing:
            self._outgoing[peer] = self._stream(step, peer, ANSWER, SIGNAL, ahead=2)
        for piece in self._pieces(region):
            slot = self._elements(self._slots.slot(self._comm.rank, peer, next(self._put[peer])))
            copy = _copies((part, run) for run, part in _with_parts(piece, slot))
            self._outgoing[peer].add(copy, _nbytes(region))

    def recv(self, step: Step, peer: int, region: Region) -> None:
        """Receive the region from the peer."""
        for piece in self._pieces(region):
            slot = self._next_slot_from(peer, piece)
            self._receive(step, peer, _copies(_with_parts(piece, slot)), slot, region)

    def recv_reduce(self, step: Step, peer: int, mine: Region, into: Region, combined: Combine) -> None:
        """Receive a region from the peer and combine it with ``mine``."""
        for ours, target in zip(self._pieces(mine), self._pieces(into), strict=True):
            slot = self._next_slot_from(peer, ours)
            self._receive(step, peer, combined(ours, slot, target), slot, into)

    def _next_slot_from(self, peer: int, piece: Region) -> Array:
        """What the peer's next piece, as long as this one, fills of its slot."""
        slot = self._elements(self._slots.slot(peer, self._comm.rank, next(self._taken[peer])))
        return slot[: sum(run.size for run in piece)]

    def _receive(self, step: Step, peer: int, takes: Plan, slot: Array, message: Region) -> None:
        """Add a piece of a message from the peer. This rank takes it from its slot when it is there."""
        if peer not in self._incoming:
            self._incoming[peer] = self._stream(step, peer, SIGNAL, ANSWER, ahead=0)
        self._incoming[peer].add(sequence(takes, *overwritten(slot)), _nbytes(message))

    def _stream(self, step: Step, peer: int, tag_heard: int, tag_told: int, ahead: int) -> _Stream:
        """A new stream between this rank and the peer, as a part of the step."""
        heard, told = np.zeros(1, np.int64), np.zeros((2, 1), np.int64)
        receive = self._held.request(self._comm.Recv_init(heard, peer, tag_heard))
        sends = [self._held.request(self._comm.Send_init(nbytes, peer, tag_told)) for nbytes in told]
        stream = _Stream(f"{self._operation}: rank {peer}'s message", receive, heard, sends, told, ahead)
        step.receives.append(receive)
        step.arrivals.append(Arrival(receive, stream.hear, None))
        step.openings.append(stream.open)
        step.answers += sends
        return stream

    def _elements(self, slot: Block) -> Array:
        return slot[: self._slot_elements * self._dtype.itemsize].view(self._dtype)

    def _pieces(self, region: Region) -> Iterator[Region]:
        """The pieces of a message. Each fills a slot, except for the last one."""
        room = self._slot_elements
        piece: Region = []
        for run in region:
            done = 0
            while done < run.size:
                piece.append(run[done : done + room])
                done += piece[-1].size
                room -= piece[-1].size
                if room == 0:
                    yield piece
                    piece, room = [], self._slot_elements
        if piece:
            yield piece


class _Stream:
    """Pieces between this rank and a peer, in one step.

    For each piece this rank acts: it copies the piece into a slot, or takes it from there. Then it tells the peer,
    with a message that says how many bytes the whole message of the piece has. It acts on the first ``ahead`` pieces at
    once, and on one more each time that it hears from the peer."""

    def __init__(
        self, what: str, receive: MPI.Prequest, heard: Array, sends: Sequence[MPI.Prequest], told: Array, ahead: int
    ) -> None:
        self._what, self._ahead = what, ahead
        self._actions: list[tuple[Plan, int]] = []
        self._listen, self._heard_bytes = receive.Start, heard
        self._tell = [(send.Wait, send.Start, nbytes) for send, nbytes in zip(sends, told, strict=True)]

    def add(self, action: Plan, nbytes: int) -> None:
        """Add the next piece, which belongs to a message of ``nbytes`` bytes."""
        self._actions.append((action, nbytes))

    def open(self) -> None:
        """Begin the stream. Its receive is started already."""
        self._done = self._heard = 0
        for _ in self._actions[: self._ahead]:
            self._act()

    def hear(self) -> None:
        """Go on, because a signal or an answer has come from the peer."""
        nbytes = self._actions[self._heard][1]
        if self._heard_bytes[0] != nbytes:
            raise MessageError(f"{self._what}: expected {nbytes} bytes; given {self._heard_bytes[0]}")
        self._heard += 1
        if self._heard < len(self._actions):
            self._listen()
        if self._done < len(self._actions):
            self._act()

    def _act(self) -> None:
        action, nbytes = self._actions[self._done]
        action()
        wait, tell, told = self._tell[self._done % 2]
        if self._done >= 2:
            wait()  # until what this request sent last is sent. The peer has answered it, so this takes no time.
        told[0] = nbytes
        tell()
        self._done += 1


def _nbytes(region: Region) -> int:
    return sum(run.nbytes for run in region)


def _with_parts(piece: Region, slot: Array) -> Iterator[tuple[Array, Array]]:
    """Each run of a piece, with the part of the slot that holds it."""
    done = 0
    for run in piece:
        yield run, slot[done : done + run.size]
        done += run.size


def _copies(pairs: Iterator[tuple[Array, Array]]) -> Plan:
    """A plan that copies. Each pair is a target and its source."""
    return sequence(*(partial(np.copyto, target, source) for target, source in pairs))
