"""A schedule over ranks that are threads of one process."""

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
        given = np.empty_like(wide)
        kernels.scale(wide, reduction.op.factor, given, how.dtype)
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
    carry_out(schedule, spaces, Threads(board, _described(call, schedule, how, board.size), how))


def _described(call: Call, schedule: Schedule, how: Reduction | None, size: int) -> str:
    """The call in words, the same ones on all ranks that make the same call."""
    words = [call.operation, schedule.algorithm]
    if how is not None:
        words.append(how.op.name)
    mine = call.send or call.recv
    if mine is not None:
        length = f"{call.extent(size)} " if call.extent_is_common else ""
        words.append(f"of {length}{mine.dtype}")
    return " ".join([*words, f"root {call.root}"])
