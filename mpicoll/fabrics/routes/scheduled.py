"""Calls as schedules, over any transport.

Here is which memory is sent, received, reduced and copied in each step. The transport says how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any

import numpy as np

from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Blocks, Copy, Recv, RecvReduce, Schedule, Send, Space
from mpicoll.arrays import kernels
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.fabrics.transports.transport import Array, BoundTransport, Region, Transport

Make = Callable[[np.dtype[Any], Array], BoundTransport]
"""Makes the transport, of elements of this dtype, and of memory for what arrives to be reduced."""


def bind(
    rank: int, size: int, call: Call, schedule: Schedule, workspace: Workspace, make: Make, longest: int = 0
) -> list[Plan]:
    """The plan of this rank's schedule. What arrives to be reduced comes in pieces of up to ``longest`` bytes.
    With 0, it is read where it lies."""
    reduction, spaces = call.reduction, Spaces(call, schedule, rank, size)
    source, out = spaces.given, spaces.out
    dtype = np.dtype(np.uint8) if source is None else source.dtype
    factor = None if reduction is None else reduction.op.factor
    scratch, inboxes, scaled = workspace.arrays(
        dtype,
        spaces.scratch_elements,
        _inbox_elements(schedule, spaces, longest // dtype.itemsize),
        0 if source is None or factor is None else source.size,
    )
    spaces.use(scratch, None if factor is None else scaled)
    before: list[Plan] = []
    after: list[Plan] = []
    if reduction is not None and factor is not None:
        assert source is not None
        before.append(partial(kernels.scale, source, factor, scaled, reduction.dtype))
    if reduction is not None and reduction.averages and call.recv is not None and call.terms(rank, size) > 1:
        assert out is not None
        after.append(partial(kernels.divide, out, call.terms(rank, size), reduction.dtype))
    transport = make(dtype, inboxes)
    execute(schedule, spaces, transport)
    run = sequence(*before, *transport.steps, *after)
    return [transport.plan(run, scratch)]


class Spaces:
    """The memory of a rank's blocks: a 1-D array for each space. SCRATCH needs ``scratch_elements`` elements."""

    def __init__(self, call: Call, schedule: Schedule, rank: int, size: int) -> None:
        table = call.collective
        has = table.has(rank, size, call.root, schedule.blocks).start
        wants = table.wants(rank, size, call.root, schedule.blocks).start
        given = None if call.send is None else kernels.values(call.send)
        out = None if call.recv is None else kernels.values(call.recv)
        if given is None:  # a call in place: the input is in the output
            given, has = out, wants
        elif out is None:  # the output is in the input
            out, wants = given, has
        self.given, self.out = given, out
        starts = _starts(call, schedule.blocks, size)
        self._starts: dict[Space, Sequence[int]] = {INPUT: starts[0], OUTPUT: starts[1], SCRATCH: starts[1]}
        self._origins = {INPUT: starts[0][has], OUTPUT: starts[1][wants]}
        self._arrays: dict[Space, Array | None] = {INPUT: given, OUTPUT: out, SCRATCH: None}
        self._in_scratch, self.scratch_elements = _packed(schedule, starts[1])

    def use(self, scratch: Array, scaled: Array | None) -> None:
        """Use this memory as SCRATCH, and in the place of the input what is ``scaled``."""
        self._arrays[SCRATCH] = scratch
        if scaled is not None:
            self._arrays[INPUT] = scaled

    def elements(self, blocks: Blocks) -> int:
        starts = self._starts[OUTPUT]
        return sum(starts[run.stop] - starts[run.start] for run in blocks)

    def region(self, space: Space, blocks: Blocks) -> Region:
        array, starts = self._arrays[space], self._starts[space]
        assert array is not None
        runs = []
        for run in blocks:
            first = self._in_scratch[run.start] if space == SCRATCH else starts[run.start] - self._origins[space]
            runs.append(array[first : first + starts[run.stop] - starts[run.start]])
        return runs


def _starts(call: Call, blocks: int, size: int) -> tuple[Sequence[int], Sequence[int]]:
    """Where each block of INPUT, and of OUTPUT, begins in the whole vector, and where the last one ends."""
    in_input, in_output = call.sendcounts or call.recvcounts, call.recvcounts or call.sendcounts
    if in_input is not None and in_output is not None:
        return [0, *accumulate(in_input)], [0, *accumulate(in_output)]
    elements, parts = call.extent(size), max(blocks, 1)
    even = [elements * b // parts for b in range(parts + 1)]
    return even, even


def _packed(schedule: Schedule, starts: Sequence[int]) -> tuple[dict[int, int], int]:
    """Where each block that the schedule keeps in SCRATCH begins there, and how many elements these blocks have."""
    kept: set[int] = set()
    for action in chain(*schedule.steps):
        match action:
            case Send(_, blocks, space) | Recv(_, blocks, space):
                used = [(space, blocks)]
            case RecvReduce(_, blocks, mine, into, _):
                used = [(mine, blocks), (into, blocks)]
            case Copy(blocks, from_, into, to):
                used = [(from_, blocks), (into, to or blocks)]
        kept.update(b for space, runs in used if space == SCRATCH for run in runs for b in run)
    ends = [*accumulate(starts[b + 1] - starts[b] for b in sorted(kept))]
    return dict(zip(sorted(kept), [0, *ends], strict=False)), ends[-1] if ends else 0


def execute(schedule: Schedule, spaces: Spaces, transport: Transport) -> None:
    """Hand one rank's schedule to a transport, action by action. It may carry them out at once, or later."""
    region = spaces.region
    for step in schedule.steps:
        for action in step:
            match action:
                case Send(peer, blocks, from_):
                    transport.send(peer, region(from_, blocks))
                case Recv(peer, blocks, into):
                    transport.recv(peer, region(into, blocks))
                case RecvReduce(peer, blocks, mine, into, mine_first):
                    transport.recv_reduce(peer, region(mine, blocks), region(into, blocks), mine_first)
                case Copy(blocks, from_, into, to):
                    transport.copy(region(from_, blocks), region(into, to or blocks))
        transport.end_step()


def _inbox_elements(schedule: Schedule, spaces: Spaces, most: int) -> int:
    """The number of elements in the memory for inboxes: those of the step that needs most. The first message that it
    reduces needs two inboxes, for pieces of at most ``most`` elements each. Others come as a whole."""
    needed = 0
    for step in schedule.steps:
        received = [n for a in step if isinstance(a, RecvReduce) and (n := spaces.elements(a.blocks))]
        if received and most:
            needed = max(needed, 2 * min(received[0], most) + sum(received[1:]))
    return needed
