"""What a schedule does in which round, and what each rank holds after it.

The round of a message is the length of the longest chain of messages that ends with it. A copy to other blocks of the
same rank also takes a round. A copy to the same blocks takes none, as it shows nothing new.

A drawing marks the cells of the rank at fault, and messages that are wrong or never arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Blocks, Copy, Message, RecvReduce, Schedule, Send, Space
from mpicoll.analysis.proof.explained import End, at_fault, end_of, touches
from mpicoll.analysis.proof.rules import each, target
from mpicoll.analysis.proof.verify import Listener
from mpicoll.errors import ScheduleError


class Block(NamedTuple):
    """What a cell holds: the contributions of these ranks to this block."""

    ranks: frozenset[int]
    block: int


class Cell(NamedTuple):
    """A place of one rank that holds a block."""

    rank: int
    space: Space
    block: int


Missing = Literal["", "source", "target"]  # the end of a message at which no rank sends or receives it


class Move(NamedTuple):
    """A message, or a copy within one rank: the cells that it reads, and those that they go to, also where one end is
    missing. If it reduces, it ``combines`` them with other cells of the receiver."""

    round: int
    reads: tuple[Cell, ...]
    writes: tuple[Cell, ...]
    sent: Blocks
    reduces: bool
    local: bool
    combines: tuple[Cell, ...] = ()
    missing: Missing = ""


def cells(rank: int, space: Space, blocks: Blocks) -> tuple[Cell, ...]:
    return tuple(Cell(rank, space, block) for block in each(blocks))


def _cells_of(rank: int, action: Message) -> tuple[Cell, ...]:
    """The cells of the rank that a message reads or writes."""
    return cells(rank, action.from_ if isinstance(action, Send) else action.into, action.blocks)


def given(collective: str, size: int, root: int, blocks: int) -> Iterator[tuple[Cell, Block]]:
    """What the ranks give. In a barrier each rank has heard of itself."""
    table = COLLECTIVES[collective]
    space = OUTPUT if table.in_x or not table.moves else INPUT
    for rank in range(size):
        has = table.has(rank, size, root, blocks) if table.moves else range(1)
        for b in has:
            yield Cell(rank, space, b), Block(frozenset({rank}), b)


def results(collective: str, size: int, root: int, blocks: int) -> Iterator[tuple[Cell, Block]]:
    """What the ranks must end with. In a barrier each rank has heard of all."""
    table = COLLECTIVES[collective]
    for rank in range(size):
        wants = table.wants(rank, size, root, blocks) if table.moves else range(1)
        for b in wants:
            ranks, block = table.source(rank, size, root, b)
            yield Cell(rank, OUTPUT, b), Block(frozenset(ranks), block)


SIGNAL = (range(1),)  # in a barrier, the block that holds the ranks that a rank has heard of


class Tracing(Listener):
    """Follows the ranks while their schedules are proved. Rounds count from 1. In round 0, the ``writes`` are what the
    ranks give, and what they copy before the first message. A barrier has one block, which holds the ranks that a rank
    has heard of."""

    def __init__(self, collective: str, size: int, root: int, blocks: int) -> None:
        self.collective, self.size, self.root, self.blocks = collective, size, root, max(1, blocks)
        self.signals = not COLLECTIVES[collective].moves
        self.writes = [(0, *both) for both in given(collective, size, root, blocks)]
        self.holds = {cell: block for _, cell, block in self.writes}
        self.moves: list[Move] = []
        self.began: list[list[int]] = [[] for _ in range(size)]
        """For each step that a rank has begun, the last round before it."""
        self.ends = [0] * size  # the last round of each rank so far
        self.waiting: dict[tuple[int, int], list[Message]] = {}
        """For each rank and step, the ends of messages that are not carried yet."""

    @property
    def rounds(self) -> int:
        return max((move.round for move in self.moves), default=0)

    def written(self, number: int) -> list[tuple[Cell, Block]]:
        """What a round writes, in order."""
        return [(cell, block) for at, cell, block in self.writes if at == number]

    def moved(self, number: int) -> list[Move]:
        """The messages and copies of a round, by the rank that they come from."""
        moves = (move for move in self.moves if move.round == number)
        return sorted(moves, key=lambda move: [cell.rank for cell in move.reads[:1]])

    def begins(self, rank: int) -> None:
        at = self.ends[rank]
        self.began[rank].append(at)
        if self.signals:  # a signal tells which ranks its sender had heard of before the step
            self.carry(Move(at, cells(rank, OUTPUT, SIGNAL), cells(rank, SCRATCH, SIGNAL), SIGNAL, False, True))

    def copies(self, rank: int, action: Copy) -> None:
        if self.signals:
            return
        moves = action.blocks != target(action)
        at = self.began[rank][-1] + moves
        reads, writes = cells(rank, action.from_, action.blocks), cells(rank, action.into, target(action))
        self.carry(move := Move(at, reads, writes, action.blocks, False, True))
        if moves:
            self.moves.append(move)
            self.ends[rank] = max(self.ends[rank], at)

    def posts(self, rank: int, action: Message) -> None:
        self.waiting.setdefault((rank, len(self.began[rank]) - 1), []).append(action)

    def carries(self, source: int, send: Send, to: int, receive: Message) -> None:
        at = 1 + max(self.began[source][-1], self.began[to][-1])
        if self.signals:
            heard = cells(to, OUTPUT, SIGNAL)
            move = Move(at, cells(source, SCRATCH, SIGNAL), heard, SIGNAL, True, False, heard)
        else:
            mine = cells(to, receive.mine, receive.blocks) if isinstance(receive, RecvReduce) else ()
            reads, writes = _cells_of(source, send), _cells_of(to, receive)
            move = Move(at, reads, writes, send.blocks, isinstance(receive, RecvReduce), False, mine)
        self.carry(move)
        self.moves.append(move)
        for rank, action in ((source, send), (to, receive)):
            self.ends[rank] = max(self.ends[rank], at)
            key = rank, len(self.began[rank]) - 1
            left = self.waiting[key]
            del left[[other is action for other in left].index(True)]  # a step may have the same send twice
            if not left:
                del self.waiting[key]

    def carry(self, move: Move) -> None:
        values = [self.holds[cell] for cell in move.reads]
        if move.combines:
            both = zip(values, move.combines, strict=True)
            values = [Block(value.ranks | self.holds[mine].ranks, value.block) for value, mine in both]
        for value, cell in zip(values, move.writes, strict=True):
            self.holds[cell] = value
            self.writes.append((move.round, cell, value))


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
    begun = [end for end in ends if found.began[end.rank][end.step] <= last]
    waits = (rank, fault.step) in found.waiting  # if the ranks wait for ever, the other end is not there
    met = (_other_waits(end, found) if waits else end.other is not None for end in begun)
    marks = [_mark(end, is_met, found.signals, 1 + last) for end, is_met in zip(begun, met, strict=True)]
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
        if takes and end.other and end.peer is not None and _other_waits(end, found):
            return [end], max(last, found.began[end.peer][end.other[0]])  # it met what it must not take
    # Nobody can go on. All that wait are marked: together they show why.
    everyone = ((*key, action) for key, actions in found.waiting.items() for action in actions)
    return [end_of(schedules, *one) for one in everyone], last


def _other_waits(end: End, found: Tracing) -> bool:
    """Whether the other end of the message is there, and waits."""
    if end.other is None or end.peer is None:
        return False
    step, action = end.other
    return any(action is waiting for waiting in found.waiting.get((end.peer, step), ()))


def _mark(end: End, met: bool, signals: bool, at: int) -> Move:
    action, other = end.action, end.other[1] if end.other else None
    if isinstance(action, Copy):
        own, there = cells(end.rank, action.from_, action.blocks), cells(end.rank, action.into, target(action))
        return Move(at, own, there, (), False, True)
    if signals:
        own, there = cells(end.rank, OUTPUT, SIGNAL), cells(action.peer, OUTPUT, SIGNAL)
    else:  # the other end has blocks of the same number if there is none
        own = _cells_of(end.rank, action)
        there = _cells_of(action.peer, other) if other else cells(action.peer, OUTPUT, action.blocks)
    if isinstance(action, Send):
        return Move(at, own, there, action.blocks, isinstance(other, RecvReduce), False, (), "" if met else "target")
    combines = cells(end.rank, action.mine, action.blocks) if isinstance(action, RecvReduce) and not signals else ()
    sent = other.blocks if other else action.blocks
    return Move(at, there, own, sent, isinstance(action, RecvReduce), False, combines, "" if met else "source")
