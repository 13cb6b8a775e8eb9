"""A schedule over MPI point-to-point messages, all of them bound as persistent requests.

A long message travels in pieces, so that one is reduced, in cache, while the next is under way. A short one of many
runs travels as one, by a datatype that gathers them.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpicoll import kernels
from mpicoll.call import Call
from mpicoll.dtypes import Reduction
from mpicoll.plan import Plan, Workspace, sequence
from mpicoll.routes.interpreter import Route, carry_out
from mpicoll.routes.native import moved_as
from mpicoll.routes.spaces import Array, Region, Spaces
from mpicoll.schedule import RecvReduce, Schedule

__all__ = ["bind"]

PIECE = 1 << 20
"""Bytes of the pieces of a long message: two of them, and what they are combined with, stay in cache."""
GATHERED = 1 << 16
"""Bytes up to which a message of several runs is gathered into one."""
TAGS = 1 << 15
"""MPI guarantees as many tags. A tag is used again only when that many messages between two ranks are done."""


def bind(comm: MPI.Intracomm, call: Call, schedule: Schedule, workspace: Workspace) -> Plan:
    """The call as this rank's part in the schedule."""
    rank, size, reduction = comm.rank, comm.size, call.reduction
    given = None if call.send is None else kernels.values(call.send)
    out = None if call.recv is None else kernels.values(call.recv)
    source = given if given is not None else out
    dtype = np.dtype(np.uint8) if source is None else source.dtype
    spaces = Spaces(call, schedule, rank, size, given, out)
    factor = None if reduction is None else reduction.op.factor
    scratch, staging, scaled = workspace.arrays(
        dtype,
        spaces.scratch_elements,
        _staged(schedule, spaces, max(PIECE, GATHERED) // dtype.itemsize),
        source.size if factor is not None and source is not None else 0,
    )
    before: list[Plan] = []
    after: list[Plan] = []
    if factor is not None:
        assert source is not None
        assert reduction is not None
        before.append(partial(kernels.scale, source, factor, scaled, reduction.dtype))
        spaces = Spaces(call, schedule, rank, size, scaled, out)
    if reduction is not None and reduction.averages and out is not None and call.terms(rank, size) > 1:
        after.append(partial(kernels.divide, out, call.terms(rank, size), reduction.dtype))
    spaces.use(scratch)
    route = _Binding(comm, reduction, dtype, staging)
    carry_out(schedule, spaces, route)
    return _Bound([*before, *route.steps, *after], route.requests, route.datatypes, scratch, reduction is not None)


def _staged(schedule: Schedule, spaces: Spaces, most: int) -> int:
    """Elements of the staging memory that the hungriest step may need: two places for each message, as long as its
    longest piece, which has ``most`` at most."""
    return max(
        (
            sum(2 * min(spaces.elements(a.blocks), most) for a in step if isinstance(a, RecvReduce))
            for step in schedule.steps
        ),
        default=0,
    )


class _Bound:
    """A plan that gives its requests back when it is dropped."""

    def __init__(
        self,
        steps: list[Plan],
        requests: list[MPI.Prequest],
        datatypes: list[MPI.Datatype],
        scratch: Array,
        reduces: bool,
    ) -> None:
        self._requests, self._datatypes = requests, datatypes
        self._scratch = scratch  # requests know its address alone, and the workspace may leave it for a larger block
        run = sequence(*steps)
        self._run = kernels.quietly(run) if reduces else run

    def __call__(self) -> None:
        self._run()

    def __del__(self) -> None:
        if not MPI.Is_finalized():
            for request in self._requests:
                request.Free()
            for kind in self._datatypes:
                kind.Free()


class _Binding(Route[Region]):
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
        self._arrivals: list[_Arrival] = []
        self._reductions = self._long = 0  # messages that they are pieces of, and those with more than two pieces
        self._copies: list[Plan] = []
        self._used = 0

    def send(self, peer: int, region: Region) -> None:
        for message in self._messages(region):
            self._sends.append(self._kept(self._comm.Send_init(message, peer, _next(self._sent, peer))))

    def recv(self, peer: int, region: Region) -> None:
        for message in self._messages(region):
            self._first.append(self._kept(self._comm.Recv_init(message, peer, _next(self._received, peer))))

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        pieces: list[MPI.Prequest] = []
        combines: list[Plan] = []
        window = [self._stage(n) for n in _longest_two(self._pieces(into))]
        for i, (ours, target) in enumerate(zip(self._pieces(mine), self._pieces(into), strict=True)):
            direct = len(target) == 1 and not np.may_share_memory(ours[0], target[0])
            inbox = target[0] if direct else window[i % 2][: sum(map(len, target))]
            request = self._comm.Recv_init(self._message([inbox]), peer, _next(self._received, peer))
            pieces.append(self._kept(request))
            combines.append(self._combined(ours, inbox, target, mine_first))
        self._first += pieces[:2]
        for i, (piece, combine) in enumerate(zip(pieces, combines, strict=True)):
            self._arrivals.append(_Arrival(piece, combine, pieces[i + 2].Start if i + 2 < len(pieces) else None))
        self._long += len(pieces) > 2
        self._reductions += 1

    def copy(self, source: Region, target: Region) -> None:
        for a, b in zip(source, target, strict=True):
            if a.size and a.ctypes.data != b.ctypes.data:
                self._copies.append(partial(np.copyto, b, a))

    def end_step(self) -> None:
        """Receives start before sends: a message that finds its receive waiting is not stored on the way."""
        requests, arrivals = [*self._first, *self._sends], self._arrivals
        if requests:
            self.steps.append(_step(requests, arrivals, in_order=self._long == 0 or self._reductions == 1))
        self.steps += self._copies
        self._begin_step()

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

    def _kept(self, request: MPI.Prequest) -> MPI.Prequest:
        self.requests.append(request)
        return request


class _Arrival(NamedTuple):
    """A piece that is to be combined when it has come, and what starts the one that comes into the same place."""

    request: MPI.Prequest
    combine: Plan
    start_next: Plan | None


def _step(requests: list[MPI.Prequest], arrivals: list[_Arrival], in_order: bool) -> Plan:
    """A step's messages from start to end.

    One long message's pieces are taken in order. Where there are several messages, to wait for a piece of one must not
    keep another from going on: it may be the one that the first one's sender waits for.
    """
    start, finish = MPI.Prequest.Startall, MPI.Request.Waitall
    if not arrivals:

        def exchange() -> None:
            start(requests)
            finish(requests)

        return exchange

    waits = [(a.request.Wait, a.combine, a.start_next) for a in arrivals]

    def combine_in_order() -> None:
        start(requests)
        for wait, combine, start_next in waits:
            wait()
            combine()
            if start_next is not None:
                start_next()
        finish(requests)

    pieces, next_of = [a.request for a in arrivals], MPI.Request.Waitany

    def combine_as_they_come() -> None:
        start(requests)
        while (i := next_of(pieces)) != MPI.UNDEFINED:  # until none is started any more
            arrivals[i].combine()
            if (start_next := arrivals[i].start_next) is not None:
                start_next()
        finish(requests)

    return combine_in_order if in_order else combine_as_they_come


def _next(counts: Counter[int], peer: int) -> int:
    """The tag of the next message between this rank and ``peer`` in this direction: both ends count alike, so that
    messages that are started at once cannot be taken for each other."""
    counts[peer] += 1
    return (counts[peer] - 1) % TAGS


def _longest_two(pieces: list[Region]) -> list[int]:
    """Elements of the two places that pieces arrive in by turns."""
    sizes = sorted((sum(map(len, piece)) for piece in pieces), reverse=True)
    return sizes[:1] * min(2, len(sizes))
