"""Calls as schedules, between ranks that are threads of one process."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.calls.record import description_of
from mpicoll.routes.interpreter import carry_out
from mpicoll.routes.spaces import Spaces
from mpicoll.schedule import Schedule
from mpicoll.transports.threads import Board, Threads
from mpicoll.transports.transport import Array

__all__ = ["bind"]


def bind(board: Board, call: Call, schedule: Schedule) -> Plan:
    """The plan of this rank's schedule."""
    description = description_of(call, schedule.algorithm, board.size)
    return partial(_carry_out, _Run(board, call, schedule, description))


class _Run(NamedTuple):
    """What the ranks of a call have in common. ``description`` is the same if they make the same call."""

    board: Board
    call: Call
    schedule: Schedule
    description: str


def _carry_out(run: _Run) -> None:
    call = run.call
    given = None if call.send is None else kernels.values(call.send)
    out = None if call.recv is None else kernels.values(call.recv)
    if call.reduction is None:
        _over_the_board(run, None, given, out)
    else:
        _reduce(run, call.reduction, given, out)


@np.errstate(all="ignore")
def _reduce(run: _Run, reduction: Reduction, given: Array | None, out: Array | None) -> None:
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
    _over_the_board(run, wide_reduction, given, result)
    terms = run.call.terms(run.board.rank, run.board.size)
    if out is None or result is None or not terms:
        return
    if reduction.averages:
        kernels.divide(result, terms, wide_reduction.dtype)
    if result is not out:
        kernels.narrow(result, out, reduction.dtype)


def _over_the_board(run: _Run, reduction: Reduction | None, given: Array | None, out: Array | None) -> None:
    board, call, schedule, description = run
    spaces = Spaces(call, schedule, board.rank, board.size, given, out)
    array = out if given is None else given
    spaces.use(np.empty(spaces.scratch_elements, np.uint8 if array is None else array.dtype))
    carry_out(schedule, spaces, Threads(board, description, reduction))
