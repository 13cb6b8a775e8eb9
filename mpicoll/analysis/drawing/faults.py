"""Where a drawing marks the fault that a proof has found: cells, and messages that are wrong or never arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpicoll.algorithms.steps import OUTPUT, Action, Blocks, Copy, RecvReduce, Schedule, Send, Space
from mpicoll.analysis.drawing.trace import SIGNAL, Cell, Missing, Move, Tracing, cells
from mpicoll.analysis.proof.explained import End, at_fault, end_of, touches
from mpicoll.analysis.proof.rules import target
from mpicoll.errors import ScheduleError


class Fault(NamedTuple):
    """The fault in a drawing of so many rounds. ``cells`` are those of the rank at fault, ``marks`` the messages and
    copies. ``ended`` says that the schedules ended, and that what they leave is wrong."""

    error: ScheduleError
    rounds: int
    cells: tuple[Cell, ...]
    marks: tuple[Move, ...]
    ended: bool


def located(fault: ScheduleError, found: Tracing, schedules: Sequence[Schedule]) -> Fault:
    """Where the fault is in what was traced."""
    rank = fault.rank
    if fault.step is None:
        block = 0 if found.signals else fault.block
        if rank is None or block is None:  # nothing could run
            return Fault(fault, 0, (), (), False)
        return Fault(fault, max(1, found.rounds), (Cell(rank, OUTPUT, block),), (), True)
    ends, last = _ends(fault, found, schedules)
    begun = (end for end in ends if found.began[end.rank][end.step] <= last)
    marks = [_mark(end, _met(end, found, fault), found.signals, 1 + last) for end in begun]
    own = {cell for mark in marks for cell in (*mark.reads, *mark.combines, *mark.writes) if cell.rank == rank}
    at_block = {cell for cell in own if fault.block in (None, cell.block) or found.signals}
    return Fault(fault, 1 + last, tuple(sorted(at_block or own)), tuple(marks), False)


def _ends(fault: ScheduleError, found: Tracing, schedules: Sequence[Schedule]) -> tuple[Sequence[End], int]:
    """What to mark, and the last round before it."""
    assert fault.rank is not None
    assert fault.step is not None
    last = found.began[fault.rank][fault.step]
    waiting = found.waiting.get((fault.rank, fault.step))
    if waiting is None:  # the step did not begin
        ends = at_fault(fault, schedules)
        return [end for end in ends if touches(end.action, fault.block)] or ends, last
    ends = [end_of(schedules, fault.rank, fault.step, action) for action in waiting]
    for end in ends:
        takes = not isinstance(end.action, Send) and touches(end.action, fault.block)
        if takes and end.other is not None and end.peer is not None and _is_waiting(end.peer, end.other, found):
            return [end], max(last, found.began[end.peer][end.other[0]])  # it met what it must not take
    # Nobody can go on. All that wait are marked: together they show why.
    everyone = ((*key, action) for key, actions in found.waiting.items() for action in actions)
    return [end_of(schedules, *one) for one in everyone], last


def _is_waiting(rank: int, other: tuple[int, Action], found: Tracing) -> bool:
    step, action = other
    return any(action is waiting for waiting in found.waiting.get((rank, step), ()))


def _met(end: End, found: Tracing, fault: ScheduleError) -> bool:
    """Whether the other end is there. If the ranks wait for ever, it is not."""
    if end.other is None or end.peer is None:
        return False
    if (fault.rank, fault.step) not in found.waiting:
        return True
    return _is_waiting(end.peer, end.other, found)


def _mark(end: End, met: bool, signals: bool, at: int) -> Move:
    def named(rank: int, space: Space, blocks: Blocks) -> tuple[Cell, ...]:
        return cells(rank, OUTPUT, SIGNAL) if signals else cells(rank, space, blocks)

    action = end.action
    if isinstance(action, Copy):
        reads, writes = named(end.rank, action.from_, action.blocks), named(end.rank, action.into, target(action))
        return Move(at, reads, writes, (), False, True)
    sends = isinstance(action, Send)
    space = action.from_ if isinstance(action, Send) else action.into
    own, other = named(end.rank, space, action.blocks), named(action.peer, *_there(end))
    reads, writes = (own, other) if sends else (other, own)
    receive = end.other[1] if sends and end.other else action
    missing: Missing = "" if met else "target" if sends else "source"
    reduces = isinstance(receive, RecvReduce)
    combines = named(end.rank, action.mine, action.blocks) if isinstance(action, RecvReduce) else ()
    blocks = end.other[1].blocks if end.other and not sends else action.blocks
    return Move(at, reads, writes, blocks, reduces, False, combines, missing)


def _there(end: End) -> tuple[Space, Blocks]:
    """The space and the blocks at the other end of a message: those of the same number if there is none."""
    other = end.other[1] if end.other else None
    if other is None or isinstance(other, Copy):
        return OUTPUT, end.action.blocks
    return (other.from_ if isinstance(other, Send) else other.into), other.blocks
