"""Calls as schedules, between ranks that are threads of one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from mpicoll.algorithms.steps import Schedule
from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call, details_of
from mpicoll.calls.plan import Plan
from mpicoll.fabrics.routes.interpreter import Spaces, execute
from mpicoll.fabrics.transports.threads import Board, Threads
from mpicoll.fabrics.transports.transport import Array

Move = Callable[[Reduction | None, Array | None, Array | None], None]
"""Carries the schedule out on an input and an output, with a reduction if there is one."""


def bind(board: Board, call: Call, schedule: Schedule) -> list[Plan]:
    """The steps of this rank's schedule: one."""
    given = None if call.send is None else kernels.values(call.send)
    out = None if call.recv is None else kernels.values(call.recv)
    move = partial(_over_the_board, board, call, schedule, details_of(call, schedule.algorithm, board.size))
    if call.reduction is None:
        return [partial(move, None, given, out)]
    return [partial(_reduce, move, call.reduction, given, out, call.terms(board.rank, board.size))]


@np.errstate(all="ignore")
def _reduce(move: Move, reduction: Reduction, given: Array | None, out: Array | None, terms: int) -> None:
    """Reduce. Short floats are reduced in float32 and rounded once at the end: between threads it gains nothing to move
    them as short ones."""
    source = out if given is None else given
    assert source is not None
    wide, result, wide_reduction = kernels.widened(source, reduction.dtype), out, reduction
    if wide is not source:
        given, result = wide, None if out is None else np.empty(out.size, wide.dtype)
        wide_reduction = kernels.in_float(reduction)
    if reduction.op.factor is not None:
        given = np.empty_like(wide)
        kernels.scale(wide, reduction.op.factor, given, wide_reduction.dtype)
    move(wide_reduction, given, result)
    if out is None or result is None or not terms:
        return
    if reduction.averages:
        kernels.divide(result, terms, wide_reduction.dtype)
    if result is not out:
        kernels.narrow(result, out, reduction.dtype)


def _over_the_board(
    board: Board,
    call: Call,
    schedule: Schedule,
    details: str,
    reduction: Reduction | None,
    given: Array | None,
    out: Array | None,
) -> None:
    """``details`` are the same on all ranks if they make the same call."""
    spaces = Spaces(call, schedule, board.rank, board.size, given, out)
    array = out if given is None else given
    spaces.use(np.empty(spaces.scratch_elements, np.uint8 if array is None else array.dtype))
    execute(schedule, spaces, Threads(board, call.operation, details, reduction))
