"""A schedule over ranks that are threads of one process: a peer's blocks are read where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from mpicoll import kernels
from mpicoll.call import Call
from mpicoll.dtypes import Reduction
from mpicoll.errors import MessageError
from mpicoll.plan import Plan
from mpicoll.routes.interpreter import Route, carry_out
from mpicoll.routes.spaces import Array, Region, Spaces
from mpicoll.schedule import Schedule

__all__ = ["Board", "Posted", "bind"]


@dataclass(eq=False)
class Posted:
    """Memory that a rank lets another one read in the course of a call, until that one has taken it."""

    call: str
    region: Region
    taken: bool = False


class Board(Protocol):
    """Where ranks post memory for each other."""

    rank: int
    size: int

    def post(self, dest: int, posted: Posted) -> None:
        """Let ``dest`` read this memory."""

    def first_from(self, sources: Sequence[int], what: str) -> tuple[int, Posted]:
        """Wait until one of these ranks has posted memory to this one: its place in ``sources``, and the memory."""

    def taken(self, posted: Posted) -> None:
        """Tell the sender that its memory was read."""

    def wait_taken(self, posted: Sequence[Posted], what: str) -> None:
        """Wait until all of this memory was read."""


def bind(board: Board, call: Call, schedule: Schedule) -> Plan:
    """The call as this rank's part in the schedule."""
    return partial(_carry_out, board, call, schedule)


def _carry_out(board: Board, call: Call, schedule: Schedule) -> None:
    given = None if call.send is None else kernels.values(call.send)
    out = None if call.recv is None else kernels.values(call.recv)
    if call.reduction is None:
        _run(board, call, schedule, None, given, out)
    else:
        _reduce(board, call, schedule, call.reduction, given, out)


@np.errstate(all="ignore")
def _reduce(
    board: Board, call: Call, schedule: Schedule, reduction: Reduction, given: Array | None, out: Array | None
) -> None:
    """16-bit values are reduced in float32, and rounded once: here no wire is saved by short ones."""
    source = out if given is None else given
    assert source is not None
    wide, result, how = kernels.widened(source, reduction.dtype), out, reduction
    if wide is not source:
        given, result, how = wide, None if out is None else np.empty(out.size, wide.dtype), kernels.in_float(reduction)
    if reduction.op.factor is not None:
        given = np.multiply(wide, reduction.op.factor, dtype=wide.dtype)
    _run(board, call, schedule, how, given, result)
    terms = call.terms(board.rank, board.size)
    if out is None or result is None or not terms:
        return
    if reduction.averages:
        kernels.divide(result, terms, how.dtype)
    if result is not out:
        kernels.narrow(result, out, reduction.dtype)


def _run(
    board: Board, call: Call, schedule: Schedule, how: Reduction | None, given: Array | None, out: Array | None
) -> None:
    spaces = Spaces(call, schedule, board.rank, board.size, given, out)
    any_of = out if given is None else given
    spaces.use(np.empty(spaces.scratch_elements, np.uint8 if any_of is None else any_of.dtype))
    carry_out(schedule, spaces, _Route(board, _described(call, schedule, how, board.size), how))


def _described(call: Call, schedule: Schedule, how: Reduction | None, size: int) -> str:
    """The call in words, the same ones on all ranks that make the same call."""
    words = [call.collective, schedule.algorithm]
    if how is not None:
        words.append(how.op.name)
    mine = call.send or call.recv
    if mine is not None:
        length = "" if call.collective == "alltoallv" else f"{call.extent(size)} "
        words.append(f"of {length}{mine.dtype}")
    return " ".join([*words, f"root {call.root}"])


class _Route(Route[Region]):
    """Posts what a step sends, and takes what its peers have posted in the order in which it comes."""

    def __init__(self, board: Board, call: str, reduction: Reduction | None) -> None:
        self._board, self._call, self._reduction = board, call, reduction
        self._what = f"rank {board.rank} in {call}"
        self._sent: list[Posted] = []
        self._awaited: list[tuple[int, Callable[[Region], None]]] = []

    def send(self, peer: int, region: Region) -> None:
        posted = Posted(self._call, region)
        self._sent.append(posted)
        self._board.post(peer, posted)

    def recv(self, peer: int, region: Region) -> None:
        self._awaited.append((peer, partial(self.copy, target=region)))

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        self._awaited.append((peer, partial(self._combine, mine, into, mine_first)))

    def _combine(self, mine: Region, into: Region, mine_first: bool, theirs: Region) -> None:
        assert self._reduction is not None
        for a, b, c in zip(mine, theirs, into, strict=True):
            first, second = (a, b) if mine_first else (b, a)
            kernels.combination(self._reduction, first, second, c)()

    def copy(self, source: Region, target: Region) -> None:
        for a, b in zip(source, target, strict=True):
            np.copyto(b, a)

    def end_step(self) -> None:
        awaited, sent = self._awaited, self._sent
        self._awaited, self._sent = [], []
        while awaited:
            i, posted = self._board.first_from([peer for peer, _ in awaited], self._what)
            peer, take = awaited.pop(i)
            if posted.call != self._call:
                raise MessageError(f"{self._what}: rank {peer} is in {posted.call}")
            take(posted.region)
            self._board.taken(posted)
        if sent:
            self._board.wait_taken(sent, self._what)
