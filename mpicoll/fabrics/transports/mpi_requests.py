"""A schedule's messages as persistent MPI requests, which are bound once and started in every call.

A long message is sent in pieces. So one piece is reduced, in cache, while the next one is under way. A short message of
several runs is sent as one, with a datatype that gathers them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.plan import Plan, sequence
from mpicoll.fabrics.transports.memory import moved_as
from mpicoll.fabrics.transports.transport import Array, BoundTransport, Region

PIECE = 1 << 20  # bytes in a piece of a long message. Two pieces, and what they are combined with, stay in cache.
GATHERED = 1 << 16  # bytes in the longest message of several runs that is gathered into one
TAGS = (1 << 15) - 2
"""The number of tags, by which two messages between the same ranks differ. MPI guarantees two more."""

Handle = TypeVar("Handle", MPI.Prequest, MPI.Datatype)


class _Held:
    """What a plan needs as long as it lives: persistent requests and datatypes, which it frees when it is dropped, and
    the memory that they point to, which outlives them."""

    def __init__(self) -> None:
        self._handles: list[MPI.Prequest | MPI.Datatype] = []
        self.memory: list[Array] = []  # requests know it only by its address

    def keep(self, handle: Handle) -> Handle:
        self._handles.append(handle)
        return handle

    def __del__(self, is_finalized: Callable[[], bool] = MPI.Is_finalized) -> None:
        if not is_finalized():  # at the end of the program, this module may be empty already
            for handle in self._handles:
                handle.Free()


class _Step:
    """The messages and copies of a step. The transport adds to it until it is ``bound``."""

    def __init__(self) -> None:
        self.receives: list[MPI.Prequest] = []
        """Receives that are started before anything else. MPI must store a message that arrives before its receive."""
        self.sends: list[MPI.Prequest] = []
        self.arrivals: list[tuple[Plan, Plan, Plan | None]] = []
        """What waits for a receive, what is done then, and what starts the next receive of the same message."""
        self.copies: list[Plan] = []  # what is done after all messages

    def bound(self) -> list[Plan]:
        """The step as plans, to be run one after another."""
        requests = [*self.receives, *self.sends]
        start, finish = partial(MPI.Prequest.Startall, requests), partial(MPI.Request.Waitall, requests)
        if not self.arrivals:  # nothing is done with what arrives
            exchange: list[Plan] = [start, finish] if requests else []
            return [*exchange, *self.copies]
        arrivals = self.arrivals

        def take_in_order() -> None:
            """Act on what arrives, in the order of the pieces."""
            start()
            for wait, act, start_next in arrivals:
                wait()
                act()
                if start_next is not None:
                    start_next()
            finish()

        return [take_in_order, *self.copies]


class MPIRequests(BoundTransport):
    """Makes requests for the messages of each step. ``inboxes`` is memory for pieces that are to be reduced."""

    def __init__(self, comm: MPI.Intracomm, reduction: Reduction | None, dtype: np.dtype[Any], inboxes: Array) -> None:
        self._comm, self._reduction, self._inboxes = comm, reduction, inboxes
        self._piece = max(1, PIECE // dtype.itemsize)
        self._kind = moved_as(dtype.itemsize)
        # Sender and receiver count their messages alike: so two that are under way at once have different tags.
        self._sent: defaultdict[int, count[int]] = defaultdict(count)
        self._received: defaultdict[int, count[int]] = defaultdict(count)
        self._held = _Held()
        self.steps = []
        self._step, self._used = _Step(), 0

    def send(self, peer: int, region: Region) -> None:
        for message in self._messages(region):
            request = self._comm.Send_init(message, peer, next(self._sent[peer]) % TAGS)
            self._step.sends.append(self._held.keep(request))

    def recv(self, peer: int, region: Region) -> None:
        for message in self._messages(region):
            request = self._comm.Recv_init(message, peer, next(self._received[peer]) % TAGS)
            self._step.receives.append(self._held.keep(request))

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        receives: list[MPI.Prequest] = []
        combines: list[Plan] = []
        pieces = [*zip(self._pieces(mine), self._pieces(into), strict=True)]
        # Two receives of the first message are active at a time. When the values of one are combined, its inbox is free
        # for the one after the next. Of other messages, all are active from the beginning: their senders must not wait
        # for this rank while it waits for the first, whose sender may wait for them.
        lengths = [sum(map(len, target)) for _, target in pieces]
        inboxes = [self._inbox(n) for n in (lengths if self._step.arrivals else 2 * [max(lengths, default=0)])]
        ahead = len(inboxes)
        for i, (ours, target) in enumerate(pieces):
            direct = len(target) == 1 and not np.may_share_memory(ours[0], target[0])
            inbox = target[0] if direct else inboxes[i % ahead][: lengths[i]]
            request = self._comm.Recv_init(self._message([inbox]), peer, next(self._received[peer]) % TAGS)
            receives.append(self._held.keep(request))
            combines.append(self._combined(mine_first, ours, inbox, target))
        self._step.receives += receives[:ahead]
        for i, (receive, combine) in enumerate(zip(receives, combines, strict=True)):
            start_next = receives[i + ahead].Start if i + ahead < len(receives) else None
            self._step.arrivals.append((receive.Wait, combine, start_next))

    def copy(self, source: Region, target: Region) -> None:
        for from_, into in zip(source, target, strict=True):
            if from_.size and from_.ctypes.data != into.ctypes.data:
                self._step.copies.append(partial(np.copyto, into, from_))

    def end_step(self) -> None:
        self.steps += self._step.bound()
        self._step, self._used = _Step(), 0

    def plan(self, run: Plan, *memory: Array) -> Plan:
        self._held.memory += memory
        plan = partial(run)  # a function or a class of our own would be one more call of Python's, each time
        plan.__dict__["held"] = self._held
        return plan

    def _combined(self, mine_first: bool, ours: Region, inbox: Array, target: Region) -> Plan:
        """A plan that combines ``ours`` with the values that have arrived in ``inbox``."""
        assert self._reduction is not None
        done, parts = 0, []
        for run, into in zip(ours, target, strict=True):
            theirs = inbox[done : done + run.size]
            done += run.size
            first, second = (run, theirs) if mine_first else (theirs, run)
            parts.append(kernels.combination(self._reduction, first, second, into))
        return sequence(*parts)

    def _pieces(self, region: Region) -> list[Region]:
        """The parts of a region that are one message each, cut alike on both sides. None without elements."""
        total, length = sum(map(len, region)), self._piece
        if total and len(region) > 1 and total * region[0].itemsize <= GATHERED:
            return [[run for run in region if run.size]]
        return [[run[i : i + length]] for run in region for i in range(0, run.size, length)]

    def _messages(self, region: Region) -> list[list[Any]]:
        """mpi4py's specifications of a region's messages. A mere signal is a message of no bytes."""
        if not region:
            return [[None, 0, MPI.BYTE]]
        return [self._message(piece) for piece in self._pieces(region)]

    def _message(self, piece: Region) -> list[Any]:
        if len(piece) == 1:
            return [MPI.buffer.fromaddress(piece[0].ctypes.data, piece[0].nbytes), piece[0].size, self._kind]
        lengths, addresses = [run.size for run in piece], [run.ctypes.data for run in piece]
        gathered = self._kind.Create_hindexed(lengths, addresses).Commit()
        return [MPI.BOTTOM, 1, self._held.keep(gathered)]

    def _inbox(self, elements: int) -> Array:
        """A part of the memory for inboxes that this step does not use yet."""
        self._used += elements
        return self._inboxes[self._used - elements : self._used]


def longest_piece() -> int:
    return max(PIECE, GATHERED)
