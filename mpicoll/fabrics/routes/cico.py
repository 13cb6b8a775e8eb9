"""Collectives through places that the ranks of a node share: copy in, meet, and take what one wants.

Every rank copies its input to a place of its own. All ranks meet. Then each one reads what it wants in the places of
the others, and combines it in rank order straight into its output. What nobody else reads there, it may overwrite then
(``mpicoll/machine/caches.py``). There are two places a rank, which take turns: when
all have come to the next meeting, nobody reads the place of the meeting before any more. So one meeting is enough for
as much as a place holds. Longer vectors go piece by piece.

Where three and more ranks reduce a long vector, no element is combined by all of them: each rank combines a slice of
the piece in its own place, all meet once more, and each one copies the slices.

Source: the copy-in-copy-out (CICO) way of MPI libraries, as in Graham and Shipman, "MPI support for multi-core
architectures: optimized shared memory collectives", EuroPVM/MPI 2008.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.fabrics.routes.shares import LINE, combined, cut, input_and_output, starts_of
from mpicoll.fabrics.transports.meeting import Meeting
from mpicoll.fabrics.transports.transport import Array
from mpicoll.machine.caches import copied, overwritten
from mpicoll.machine.shared_memory import Block

__all__ = ["Places", "bind"]

PLACE = 256 << 10
"""Bytes of a place. Two places of a rank and its output stay in the second-level cache."""
LEAST_SLICED = 256 << 10
"""Bytes of the shortest vector that is combined in slices: for a shorter one, to meet once more takes longer."""


class Places:
    """Two places of each rank, in a block of ``NBYTES`` bytes. ``turn`` is the one that is used next."""

    NBYTES = 2 * PLACE

    def __init__(self, meeting: Meeting, blocks: Sequence[Block]) -> None:
        self.meeting = meeting
        self.halves = [[block[i * PLACE : (i + 1) * PLACE] for block in blocks] for i in range(2)]
        self.turn = 0


def bind(places: Places, call: Call, workspace: Workspace) -> Plan:
    """The plan of a call whose extent is the same on all ranks, and whose reduction has no factor."""
    of_each_half = [_pieces(half, places.meeting.rank, call, workspace) for half in places.halves]
    count, come = len(of_each_half[0]), places.meeting.come

    def run() -> None:
        turn = places.turn
        for i in range(turn, turn + count):
            first, *others = of_each_half[i % 2][i - turn]
            for step in first:
                step()
            for phase in others:
                come()
                for step in phase:
                    step()
        places.turn = (turn + count) % 2

    return run if call.reduction is None else kernels.quietly(run)


def _pieces(half: Sequence[Block], rank: int, call: Call, workspace: Workspace) -> list[list[list[Plan]]]:
    """What this rank does for each piece of the call, in phases between which all ranks meet. A piece has a part of
    each block."""
    table, size, root, reduction = call.collective, len(half), call.root, call.reduction
    starts = starts_of(call, size)
    blocks = len(starts) - 1
    has = [table.has(r, size, root, blocks) for r in range(size)]
    wants = table.wants(rank, size, root, blocks)
    given, out = map(_as_bytes, input_and_output(call, rank, size))
    room = PLACE // max(map(len, has)) // LINE * LINE
    longest = max(stop - start for start, stop in pairwise(starts))
    whole = reduction is not None and table.elementwise and table.prefix is None
    sliced = whole and size > 2 and longest >= LEAST_SLICED
    one_reader = size == 2 or table.gives == "p" or table.root == "gets"

    def piece(first: int) -> list[list[Plan]]:
        """The one that begins so many bytes into each block."""

        def part(vector: Array, block: int, there: range) -> Array:
            """Its part of a block, in a vector that has the blocks ``there``."""
            start, stop = (starts[b] - starts[there.start] for b in (block, block + 1))
            return vector[start:stop][first : first + room]

        def place(giving: int, block: int) -> Array:
            """Where a rank puts its part of a block."""
            at = (block - has[giving].start) * room
            return half[giving][at : at + min(room, max(0, starts[block + 1] - starts[block] - first))]

        copies_in: list[Plan] = []
        for block in has[rank]:
            only_mine = block == rank if table.gives == "p" else table.root == "gets" and rank == root
            if sliced or not only_mine:
                copies_in.append(partial(np.copyto, place(rank, block), part(given, block, has[rank])))
        if sliced:
            assert reduction is not None
            everyones = [place(r, 0) for r in range(size)]
            return [copies_in, *_by_slices(everyones, part(out, 0, range(1)), rank, reduction, workspace)]
        after: list[Plan] = []
        for block in wants:
            giving, which = table.source(rank, size, root, block)
            rows = [part(given, which, has[r]) if r == rank else place(r, which) for r in giving]
            after += _taken(rows, part(out, block, wants), out.size, reduction, workspace)
            if one_reader:
                after += [step for r, row in zip(giving, rows, strict=True) if r != rank for step in overwritten(row)]
        return [copies_in, after]

    return [piece(first) for first in range(0, longest, room)]


def _by_slices(
    everyones: list[Array], out: Array, rank: int, reduction: Reduction, workspace: Workspace
) -> list[list[Plan]]:
    """What this rank does of a reduction after all have copied in, and after all have combined their slices."""
    size, nbytes = len(everyones), everyones[0].size
    slices = [slice(cut(nbytes, r, size), cut(nbytes, r + 1, size)) for r in range(size)]
    mine = slices[rank]
    combines = _combined([place[mine] for place in everyones], everyones[rank][mine], reduction, workspace)
    combines += [step for r in range(size) if r != rank for step in overwritten(everyones[r][mine])]
    in_turn = [(rank + turn) % size for turn in range(size)] if out.size else []
    return [combines, [partial(np.copyto, out[slices[r]], everyones[r][slices[r]]) for r in in_turn]]


def _taken(
    rows: list[Array], target: Array, nbytes: int, reduction: Reduction | None, workspace: Workspace
) -> list[Plan]:
    """``target`` = the rows, combined in their order. It is a piece of an output of ``nbytes`` bytes."""
    if target.size == 0 or (len(rows) == 1 and rows[0].ctypes.data == target.ctypes.data):  # this rank's own, in place
        return []
    if reduction is None or len(rows) == 1:
        return [copied(target, rows[0], nbytes)]
    return _combined(rows, target, reduction, workspace)


def _combined(rows: list[Array], target: Array, reduction: Reduction, workspace: Workspace) -> list[Plan]:
    """``target`` = the rows, combined in their order. All are given as bytes."""
    stored = kernels.storage(reduction.dtype)
    return combined([row.view(stored) for row in rows], target.view(stored), reduction, workspace)


def _as_bytes(b: Buffer | None) -> Array:
    byte = np.dtype(np.uint8)
    return np.empty(0, byte) if b is None else kernels.described(b.address, b.nbytes, byte)
