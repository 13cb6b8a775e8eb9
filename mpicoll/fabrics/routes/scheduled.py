"""Calls as schedules. A transport carries their messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpicoll.algorithms.steps import RecvReduce, Schedule, Step
from mpicoll.arrays import kernels
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.fabrics.routes.interpreter import Spaces, execute
from mpicoll.fabrics.transports.transport import Array, BoundTransport

Make = Callable[[np.dtype[Any], Array], BoundTransport]
"""Makes the transport, of elements of this dtype, and of memory for what arrives to be reduced."""


def bind(
    rank: int, size: int, call: Call, schedule: Schedule, workspace: Workspace, make: Make, longest: int = 0
) -> list[Plan]:
    """The plan of this rank's schedule. What arrives to be reduced comes in pieces of up to ``longest`` bytes; 0 where
    it is read where it lies."""
    reduction = call.reduction
    given = None if call.send is None else kernels.values(call.send)
    out = None if call.recv is None else kernels.values(call.recv)
    source = given if given is not None else out
    dtype = np.dtype(np.uint8) if source is None else source.dtype
    spaces = Spaces(call, schedule, rank, size, given, out)
    factor = None if reduction is None else reduction.op.factor
    scratch, inboxes, scaled = workspace.arrays(
        dtype,
        spaces.scratch_elements,
        _inbox_elements(schedule, spaces, longest // dtype.itemsize),
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
    transport = make(dtype, inboxes)
    execute(schedule, spaces, transport)
    run = sequence(*before, *transport.steps, *after)
    return [transport.plan(run if reduction is None else kernels.quietly(run), scratch)]


def _inbox_elements(schedule: Schedule, spaces: Spaces, most: int) -> int:
    """The number of elements in the memory for inboxes: those of the step that needs most. The first message that it
    reduces needs two inboxes, for pieces of at most ``most`` elements each. Others come as a whole."""

    def needed(step: Step) -> int:
        several = [n for a in step if isinstance(a, RecvReduce) and (n := spaces.elements(a.blocks))]
        return sum(2 * min(n, most) for n in several[:1]) + sum(several[1:]) * bool(most)

    return max(map(needed, schedule.steps), default=0)
