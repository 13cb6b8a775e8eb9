"""A schedule's messages as persistent MPI requests, bound once and started again in every call.

A long message travels in pieces, so that one piece is reduced, in cache, while the next is under way. A short message
of many runs travels as one, by a datatype that gathers them. Where ranks share memory, long messages go through it
instead.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.plan import Plan, sequence
from mpicoll.transports.memory import moved_as
from mpicoll.transports.shared import Slots, Streams
from mpicoll.transports.step import TAGS, Arrival, Held, Step
from mpicoll.transports.transport import Array, Region, Transport

__all__ = ["Messages", "longest_piece"]

PIECE = 1 << 20
"""Bytes of the pieces of a long message: two of them, and what they are combined with, stay in cache."""
GATHERED = 1 << 16
"""Bytes up to which a message of several runs is gathered into one."""


class Messages(Transport[Region]):
    """Collects each step's messages. ``steps`` are the plans of the steps so far.

    ``staging`` is memory for pieces that wait to be reduced. With ``slots``, long messages go through shared memory;
    ``operation`` names the call in their errors.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        operation: str,
        reduction: Reduction | None,
        dtype: np.dtype[Any],
        staging: Array,
        slots: Slots | None,
    ) -> None:
        self._comm, self._reduction, self._staging = comm, reduction, staging
        self._piece = max(1, PIECE // dtype.itemsize)
        self._kind = moved_as(dtype.itemsize)
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._held = Held()
        self._streams = None if slots is None else Streams(comm, operation, dtype, slots, self._held)
        self.steps: list[Plan] = []
        self._step, self._used = Step(), 0

    def send(self, peer: int, region: Region) -> None:
        if self._streams is not None and self._streams.take(region):
            self._streams.send(self._step, peer, region)
            return
        for message in self._messages(region):
            request = self._comm.Send_init(message, peer, _next_tag(self._sent, peer))
            self._step.sends.append(self._held.request(request))

    def recv(self, peer: int, region: Region) -> None:
        if self._streams is not None and self._streams.take(region):
            self._streams.recv(self._step, peer, region)
            return
        for message in self._messages(region):
            request = self._comm.Recv_init(message, peer, _next_tag(self._received, peer))
            self._step.receives.append(self._held.request(request))

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        if self._streams is not None and self._streams.take(into):
            self._streams.recv_reduce(self._step, peer, mine, into, partial(self._combined, mine_first))
            return
        pieces: list[MPI.Prequest] = []
        combines: list[Plan] = []
        window = [self._stage(n) for n in _longest_two(self._pieces(into))]
        for i, (ours, target) in enumerate(zip(self._pieces(mine), self._pieces(into), strict=True)):
            direct = len(target) == 1 and not np.may_share_memory(ours[0], target[0])
            inbox = target[0] if direct else window[i % 2][: sum(map(len, target))]
            request = self._comm.Recv_init(self._message([inbox]), peer, _next_tag(self._received, peer))
            pieces.append(self._held.request(request))
            combines.append(self._combined(mine_first, ours, inbox, target))
        step = self._step
        step.receives += pieces[:2]
        for i, (piece, combine) in enumerate(zip(pieces, combines, strict=True)):
            step.arrivals.append(Arrival(piece, combine, pieces[i + 2].Start if i + 2 < len(pieces) else None))
        step.long_reductions += len(pieces) > 2
        step.reductions += 1

    def copy(self, source: Region, target: Region) -> None:
        for a, b in zip(source, target, strict=True):
            if a.size and a.ctypes.data != b.ctypes.data:
                self._step.copies.append(partial(np.copyto, b, a))

    def end_step(self) -> None:
        self.steps += self._step.bound()
        self._step, self._used = Step(), 0
        if self._streams is not None:
            self._streams.end_step()

    def plan(self, run: Plan, *memory: Array) -> Plan:
        """``run``, which starts these requests. They know only their memory's address, so the plan keeps the memory."""
        return _Plan(run, self._held, memory)

    def _combined(self, mine_first: bool, ours: Region, inbox: Array, target: Region) -> Plan:
        """What combines ``ours`` with what has arrived in ``inbox``."""
        assert self._reduction is not None
        done, parts = 0, []
        for a, into in zip(ours, target, strict=True):
            theirs = inbox[done : done + a.size]
            done += a.size
            first, second = (a, theirs) if mine_first else (theirs, a)
            parts.append(kernels.combination(self._reduction, first, second, into))
        return sequence(*parts)

    def _pieces(self, region: Region) -> list[Region]:
        """The parts of a region that are a message each, the same ones at both ends; none if it has no elements."""
        total = sum(map(len, region))
        if not total:
            return []
        if len(region) > 1 and total * region[0].itemsize <= GATHERED:
            return [[run for run in region if run.size]]
        step = self._piece
        return [[run[i : i + step]] for run in region for i in range(0, run.size, step)]

    def _messages(self, region: Region) -> list[list[Any]]:
        """mpi4py's specifications of a region's messages; a mere signal is one without elements."""
        return [self._message(piece) for piece in self._pieces(region)] if region else [[None, 0, MPI.BYTE]]

    def _message(self, piece: Region) -> list[Any]:
        if len(piece) == 1:
            return [MPI.buffer.fromaddress(piece[0].ctypes.data, piece[0].nbytes), piece[0].size, self._kind]
        lengths, addresses = [run.size for run in piece], [run.ctypes.data for run in piece]
        gathered = self._kind.Create_hindexed(lengths, addresses).Commit()
        return [MPI.BOTTOM, 1, self._held.datatype(gathered)]

    def _stage(self, elements: int) -> Array:
        self._used += elements
        return self._staging[self._used - elements : self._used]


class _Plan:
    """A plan that keeps what it needs: MPI's requests, and the memory that these point to."""

    def __init__(self, run: Plan, held: Held, memory: tuple[Array, ...]) -> None:
        self._run, self._held, self._memory = run, held, memory

    def __call__(self) -> None:
        self._run()


def longest_piece() -> int:
    """Bytes of a piece at most."""
    return max(PIECE, GATHERED)


def _next_tag(counts: Counter[int], peer: int) -> int:
    """The tag of the next message to a peer, or from one. Both ends count alike, so that messages that are started at
    once cannot be taken for each other."""
    counts[peer] += 1
    return (counts[peer] - 1) % TAGS


def _longest_two(pieces: list[Region]) -> list[int]:
    """Elements of the two buffers in which pieces arrive by turns."""
    sizes = sorted((sum(map(len, piece)) for piece in pieces), reverse=True)
    return sizes[:1] * min(2, len(sizes))
