"""Messages between ranks that are threads of one process. The receiver reads the blocks from the sender's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import Reduction
from mpicoll.errors import MessageError
from mpicoll.fabrics.transports.transport import Region, Transport


@dataclass(eq=False)
class Posted:
    """Memory that a rank lets another rank read during a call. ``taken`` says that the other rank has read it.
    ``call`` describes the call, so that ranks that make different calls find out."""

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
        """Wait until one of these ranks has posted memory for this one. Returns its index in ``sources``, and the
        memory. ``what`` says in an error message what this rank waited for."""

    def taken(self, posted: Posted) -> None:
        """Tell the sender that its memory was read."""

    def wait_taken(self, posted: Sequence[Posted], what: str) -> None:
        """Wait until all of this memory was read."""


class Threads(Transport):
    """Posts what a step sends. At the end of the step it takes what the peers have posted, in the order in which it
    arrives."""

    def __init__(self, board: Board, operation: str, details: str, reduction: Reduction | None) -> None:
        self._board, self._operation, self._reduction = board, operation, reduction
        self._call = f"{operation} {details}" if details else operation
        self._what = f"rank {board.rank} in {self._call}"
        self._sent: list[Posted] = []
        self._awaited: list[tuple[int, Callable[[Region], None]]] = []

    def send(self, peer: int, region: Region) -> None:
        posted = Posted(self._call, region)
        self._sent.append(posted)
        self._board.post(peer, posted)

    def recv(self, peer: int, region: Region) -> None:
        self._awaited.append((peer, partial(self._take, peer, mine=region)))

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        self._awaited.append((peer, partial(self._combine, mine, into, mine_first)))

    def _combine(self, mine: Region, into: Region, mine_first: bool, theirs: Region) -> None:
        assert self._reduction is not None
        for run, received, target in zip(mine, theirs, into, strict=True):
            first, second = (run, received) if mine_first else (received, run)
            kernels.combination(self._reduction, first, second, target)()

    def copy(self, source: Region, target: Region) -> None:
        self._take(self._board.rank, source, target)

    def _take(self, peer: int, theirs: Region, mine: Region) -> None:
        given, expected = (sum(run.size for run in region) for region in (theirs, mine))
        if given != expected:  # NumPy would repeat a single element
            raise MessageError(f"{self._operation}: expected {expected} elements from rank {peer}; it sends {given}")
        for from_, into in zip(theirs, mine, strict=True):
            np.copyto(into, from_)

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
