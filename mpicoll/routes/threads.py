"""Calls as schedules, between ranks that are threads of one process."""

from __future__ import annotations

from functools import partial

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.arrays.dtypes import Reduction
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.routes.interpreter import carry_out
from mpicoll.routes.spaces import Spaces
from mpicoll.schedule import Schedule
from mpicoll.transports.threads import Board, Threads
from mpicoll.transports.transport import Array

__all__ = ["bind"]


def bind(board: Board, call: Call, schedule: Schedule) -> Plan:
    """The plan of this rank's schedule."""
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
    _run(board, call, schedule, wide_reduction, given, result)
    terms = call.terms(board.rank, board.size)
    if out is None or result is None or not terms:
        return
    if reduction.averages:
        kernels.divide(result, terms, wide_reduction.dtype)
    if result is not out:
        kernels.narrow(result, out, reduction.dtype)


def _run(
    board: Board, call: Call, schedule: Schedule, reduction: Reduction | None, given: Array | None, out: Array | None
) -> None:
    spaces = Spaces(call, schedule, board.rank, board.size, given, out)
    array = out if given is None else given
    spaces.use(np.empty(spaces.scratch_elements, np.uint8 if array is None else array.dtype))
    carry_out(schedule, spaces, Threads(board, _described(call, schedule, reduction, board.size), reduction))


def _described(call: Call, schedule: Schedule, reduction: Reduction | None, size: int) -> str:
    """The call in words. All ranks that make the same call have the same words."""
    words = [call.operation, schedule.algorithm]
    if reduction is not None:
        words.append(reduction.op.name)
    buffer = call.send or call.recv
    if buffer is not None:
        length = f"{call.extent(size)} " if call.extent_is_common else ""
        words.append(f"of {length}{buffer.dtype}")
    if call.uneven and call.extent_is_common:
        words.append(f"counts {list(call.sendcounts or call.recvcounts or ())}")
    return " ".join([*words, f"root {call.root}"])
