"""Messages between ranks, bound as persistent MPI requests.

A long message travels in pieces, so that one is reduced, in cache, while the next is under way. A short one of many
runs travels as one, by a datatype that gathers them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll import kernels
from mpicoll.dtypes import Reduction
from mpicoll.plan import Plan, sequence
from mpicoll.routes.interpreter import Route
from mpicoll.routes.native import moved_as
from mpicoll.routes.spaces import Array, Region

__all__ = ["Arrival", "Persistent", "longest_piece"]

PIECE = 1 << 20
"""Bytes of the pieces of a long message: two of them, and what they are combined with, stay in cache."""
GATHERED = 1 << 16
"""Bytes up to which a message of several runs is gathered into one."""
SPINS, YIELDS = 20, 200
"""Looks at requests under way before a rank lets others have its core, and before it pauses between two."""
PAUSE = 2e-5
"""Seconds."""
TAGS = (1 << 15) - 2
"""MPI guarantees two tags more. One is used again only when that many messages between two ranks are done."""

_WAITS = MPI.get_vendor()[0] == "Open MPI"


class Persistent(Route[Region]):
    """Collects each step's messages, and what is to be done with what arrives."""

    def __init__(self, comm: MPI.Intracomm, reduction: Reduction | None, dtype: np.dtype[Any], staging: Array) -> None:
        self._comm, self._reduction, self._staging = comm, reduction, staging
        self._piece = max(1, PIECE // dtype.itemsize)
        self._kind = moved_as(dtype.itemsize)
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self.requests: list[MPI.Prequest] = []
        self.datatypes: list[MPI.Datatype] = []
        self.steps: list[Plan] = []
        self._begin_step()

    def _begin_step(self) -> None:
        self._first: list[MPI.Prequest] = []  # receives, started before anything
        self._sends: list[MPI.Prequest] = []
        self._arrivals: list[Arrival] = []
        self._opens: list[Plan] = []  # what is done once the receives wait
        self._answers: list[MPI.Prequest] = []  # sends that these and the arrivals start
        self._reductions = self._long = 0  # messages that they are pieces of, and those with more than two pieces
        self._copies: list[Plan] = []
        self._used = 0

    def send(self, peer: int, region: Region) -> None:
        for message in self._messages(region):
            self._sends.append(self._kept(self._comm.Send_init(message, peer, self._tag_to(peer))))

    def recv(self, peer: int, region: Region) -> None:
        for message in self._messages(region):
            self._first.append(self._kept(self._comm.Recv_init(message, peer, self._tag_from(peer))))

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        pieces: list[MPI.Prequest] = []
        combines: list[Plan] = []
        window = [self._stage(n) for n in _longest_two(self._pieces(into))]
        for i, (ours, target) in enumerate(zip(self._pieces(mine), self._pieces(into), strict=True)):
            direct = len(target) == 1 and not np.may_share_memory(ours[0], target[0])
            inbox = target[0] if direct else window[i % 2][: sum(map(len, target))]
            request = self._comm.Recv_init(self._message([inbox]), peer, self._tag_from(peer))
            pieces.append(self._kept(request))
            combines.append(self._combined(ours, inbox, target, mine_first))
        self._first += pieces[:2]
        for i, (piece, combine) in enumerate(zip(pieces, combines, strict=True)):
            self._arrivals.append(Arrival(piece, combine, pieces[i + 2].Start if i + 2 < len(pieces) else None))
        self._long += len(pieces) > 2
        self._reductions += 1

    def copy(self, source: Region, target: Region) -> None:
        for a, b in zip(source, target, strict=True):
            if a.size and a.ctypes.data != b.ctypes.data:
                self._copies.append(partial(np.copyto, b, a))

    def end_step(self) -> None:
        """Receives start before sends: a message that finds its receive waiting is not stored on the way."""
        requests = [*self._first, *self._sends]
        if self._opens:
            self.steps.append(_as_they_come(requests, self._arrivals, self._opens, self._answers))
        elif self._arrivals and (self._long == 0 or self._reductions == 1):
            self.steps.append(_in_order(requests, self._arrivals))
        elif self._arrivals:
            self.steps.append(_as_they_come(requests, self._arrivals))
        elif requests:
            self.steps.append(_exchange(requests))
        self.steps += self._copies
        self._begin_step()

    def plan(self, run: Plan, *memory: Array) -> Plan:
        """``run``, which starts these requests; they know their memory's address alone, so this keeps it."""
        return _Bound(run, self.requests, self.datatypes, memory)

    def _combined(self, ours: Region, inbox: Array, target: Region, mine_first: bool) -> Plan:
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
        lengths, places = [run.size for run in piece], [run.ctypes.data for run in piece]
        gathered = self._kind.Create_hindexed(lengths, places).Commit()
        self.datatypes.append(gathered)
        return [MPI.BOTTOM, 1, gathered]

    def _stage(self, elements: int) -> Array:
        self._used += elements
        return self._staging[self._used - elements : self._used]

    # Both ends count messages alike, so that those which are started at once cannot be taken for each other.

    def _tag_to(self, peer: int) -> int:
        """The tag of the next message to ``peer``."""
        self._sent[peer] += 1
        return (self._sent[peer] - 1) % TAGS

    def _tag_from(self, peer: int) -> int:
        """The tag of the next message from ``peer``."""
        self._received[peer] += 1
        return (self._received[peer] - 1) % TAGS

    def _kept(self, request: MPI.Prequest) -> MPI.Prequest:
        self.requests.append(request)
        return request


class _Bound:
    """A plan that gives its requests back when it is dropped."""

    def __init__(
        self, run: Plan, requests: list[MPI.Prequest], datatypes: list[MPI.Datatype], memory: Sequence[Array]
    ) -> None:
        self._run, self._requests, self._datatypes, self._memory = run, requests, datatypes, memory

    def __call__(self) -> None:
        self._run()

    def __del__(self) -> None:
        if not MPI.Is_finalized():
            for request in self._requests:
                request.Free()
            for kind in self._datatypes:
                kind.Free()


class Arrival(NamedTuple):
    """What is done when a request is complete, and what starts the next one of its kind."""

    request: MPI.Prequest
    act: Plan
    start_next: Plan | None


def _exchange(requests: list[MPI.Prequest]) -> Plan:
    """A step whose messages need nothing of us."""
    start, finish = MPI.Prequest.Startall, MPI.Request.Waitall

    def exchange() -> None:
        start(requests)
        finish(requests)

    return exchange


def _in_order(requests: list[MPI.Prequest], arrivals: list[Arrival]) -> Plan:
    """A step with one long message, or short ones: pieces are taken in their order."""
    start, finish = MPI.Prequest.Startall, MPI.Request.Waitall
    waits = [(a.request.Wait, a.act, a.start_next) for a in arrivals]

    def take_in_order() -> None:
        start(requests)
        for wait, act, start_next in waits:
            wait()
            act()
            if start_next is not None:
                start_next()
        finish(requests)

    return take_in_order


def _as_they_come(
    requests: list[MPI.Prequest],
    arrivals: list[Arrival],
    opens: Sequence[Plan] = (),
    answers: Sequence[MPI.Prequest] = (),
) -> Plan:
    """A step with several long messages: to wait for a piece of one must not keep another from going on, which may be
    the one that the first one's sender waits for."""
    start, finish = MPI.Prequest.Startall, MPI.Request.Waitall
    pieces, all_of_it = [a.request for a in arrivals], [*requests, *answers]

    def take_as_they_come() -> None:
        start(requests)
        for open_ in opens:
            open_()
        while (i := _any_of(pieces)) != MPI.UNDEFINED:  # until none is started any more
            arrivals[i].act()
            if (start_next := arrivals[i].start_next) is not None:
                start_next()
        finish(all_of_it)

    return take_as_they_come


def _any_of(requests: list[MPI.Prequest]) -> int:
    """MPI's Waitany. MPICH's polls until the scheduler takes the core away, milliseconds later, from a rank that one on
    the same core waits for. To poll here keeps other threads out of Python, so it pauses soon."""
    if _WAITS:
        return MPI.Request.Waitany(requests)
    test, turns = MPI.Request.Testany, 0
    while True:
        i, found = test(requests)
        if found:
            return i
        turns += 1
        if turns > YIELDS:
            time.sleep(PAUSE)
        elif turns > SPINS:
            os.sched_yield()


def longest_piece() -> int:
    """Bytes of a piece at most."""
    return max(PIECE, GATHERED)


def _longest_two(pieces: list[Region]) -> list[int]:
    """Elements of the two places that pieces arrive in by turns."""
    sizes = sorted((sum(map(len, piece)) for piece in pieces), reverse=True)
    return sizes[:1] * min(2, len(sizes))
