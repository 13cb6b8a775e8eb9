"""Calls as schedules, with MPI messages between the ranks."""

from __future__ import annotations

from functools import partial

import numpy as np
from mpi4py import MPI

from mpicoll.algorithms.steps import RecvReduce, Schedule, Step
from mpicoll.arrays import kernels
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.fabrics.routes.interpreter import Spaces, execute
from mpicoll.fabrics.transports.mpi_requests import MPIRequests, longest_piece


def bind(comm: MPI.Intracomm, call: Call, schedule: Schedule, workspace: Workspace) -> list[Plan]:
    """The steps of this rank's schedule."""
    rank, size, reduction = comm.rank, comm.size, call.reduction
    given = None if call.send is None else kernels.values(call.send)
    out = None if call.recv is None else kernels.values(call.recv)
    source = given if given is not None else out
    dtype = np.dtype(np.uint8) if source is None else source.dtype
    spaces = Spaces(call, schedule, rank, size, given, out)
    factor = None if reduction is None else reduction.op.factor
    scratch, inboxes, scaled = workspace.arrays(
        dtype,
        spaces.scratch_elements,
        _inbox_elements(schedule, spaces, longest_piece() // dtype.itemsize),
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
    transport = MPIRequests(comm, reduction, dtype, inboxes)
    execute(schedule, spaces, transport)
    run = sequence(*before, *transport.steps, *after)
    return [transport.plan(run if reduction is None else kernels.quietly(run), scratch)]


def _inbox_elements(schedule: Schedule, spaces: Spaces, most: int) -> int:
    """The number of elements in the memory for inboxes: those of the step that needs most. For each message that it
    reduces, a step needs two inboxes, for pieces of at most ``most`` elements each."""

    def needed(step: Step) -> int:
        return sum(2 * min(spaces.elements(a.blocks), most) for a in step if isinstance(a, RecvReduce))

    return max(map(needed, schedule.steps), default=0)
