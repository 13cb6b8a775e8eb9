"""The three spaces of a schedule on one rank, as arrays in the host's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from mpicoll.calls.call import Call
from mpicoll.schedule import INPUT, OUTPUT, SCRATCH, Blocks, Copy, RecvReduce, Schedule, Send, Space
from mpicoll.transports.transport import Array, Region

__all__ = ["Spaces"]


class Spaces:
    """Where a rank's blocks lie, each space in a 1-D array. SCRATCH needs ``scratch_elements`` elements."""

    def __init__(
        self, call: Call, schedule: Schedule, rank: int, size: int, given: Array | None, out: Array | None
    ) -> None:
        table = call.collective
        has = table.has(rank, size, call.root, schedule.blocks).start
        wants = table.wants(rank, size, call.root, schedule.blocks).start
        if given is None:  # in place: what the rank gives lies in its output,
            given, has = out, wants
        elif out is None:  # or its output in what it gives
            out, wants = given, has
        starts = _starts(call, schedule.blocks, size)
        self._starts: dict[Space, Sequence[int]] = {INPUT: starts[0], OUTPUT: starts[1], SCRATCH: starts[1]}
        self._origins = {INPUT: starts[0][has], OUTPUT: starts[1][wants]}
        self._arrays: dict[Space, Array | None] = {INPUT: given, OUTPUT: out, SCRATCH: None}
        self._in_scratch, self.scratch_elements = _packed(schedule, starts[1])

    def use(self, scratch: Array) -> None:
        """SCRATCH lies here."""
        self._arrays[SCRATCH] = scratch

    def elements(self, blocks: Blocks, space: Space = OUTPUT) -> int:
        """How many elements these blocks have."""
        starts = self._starts[space]
        return sum(starts[r.stop] - starts[r.start] for r in blocks)

    def region(self, space: Space, blocks: Blocks) -> Region:
        """Where these blocks lie."""
        array, starts = self._arrays[space], self._starts[space]
        assert array is not None
        found = []
        for r in blocks:
            first = self._in_scratch[r.start] if space == SCRATCH else starts[r.start] - self._origins[space]
            found.append(array[first : first + starts[r.stop] - starts[r.start]])
        return found


def _starts(call: Call, blocks: int, size: int) -> tuple[Sequence[int], Sequence[int]]:
    """Where each block of INPUT and of OUTPUT begins in the whole vector, and where the last one ends."""
    to, of = call.sendcounts or call.recvcounts, call.recvcounts or call.sendcounts
    if to is not None and of is not None:
        return [0, *accumulate(to)], [0, *accumulate(of)]
    n, parts = call.extent(size), max(blocks, 1)
    even = [n * b // parts for b in range(parts + 1)]
    return even, even


def _packed(schedule: Schedule, starts: Sequence[int]) -> tuple[dict[int, int], int]:
    """Where each block that the schedule keeps in SCRATCH lies there, one after another, and where the last ends."""
    kept = sorted({b for step in schedule.steps for action in step for r in _scratch(action) for b in r})
    ends = [*accumulate(starts[b + 1] - starts[b] for b in kept)]
    return dict(zip(kept, [0, *ends], strict=False)), ends[-1] if ends else 0


def _scratch(action: object) -> Iterator[range]:
    """The runs of blocks in SCRATCH that an action touches."""
    match action:
        case Send(blocks=blocks, from_=space):
            used = [(space, blocks)]
        case RecvReduce(blocks=blocks, mine=mine, into=into):
            used = [(mine, blocks), (into, blocks)]
        case Copy(blocks, from_, into, to):
            used = [(from_, blocks), (into, to or blocks)]
        case _:
            used = [(action.into, action.blocks)]  # type: ignore[attr-defined]
    for space, runs in used:
        if space == SCRATCH:
            yield from runs
