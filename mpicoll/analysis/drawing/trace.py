"""What a schedule does in which round, and what each rank holds after it.

The steps of different ranks do not happen at the same times: in a tree some ranks wait while others work. The round of
a message is one more than the last round that either of its ranks must finish before it. So it is the length of the
longest chain of messages that ends with it. A copy to other blocks of the same rank also takes a round. A copy to the
same blocks takes none, as it shows nothing new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpicoll.analysis.proof.rules import each, target
from mpicoll.collectives import COLLECTIVES
from mpicoll.schedule import (
    INPUT,
    OUTPUT,
    SCRATCH,
    Action,
    Blocks,
    Copy,
    Recv,
    RecvReduce,
    Schedule,
    Send,
    Space,
    Step,
    one,
)

__all__ = ["Block", "Cell", "Move", "Trace", "given", "results", "trace"]


class Block(NamedTuple):
    """What a cell holds: the contributions of these ranks to this block."""

    ranks: frozenset[int]
    block: int


class Cell(NamedTuple):
    """A place of one rank that holds a block."""

    rank: int
    space: Space
    block: int


class Move(NamedTuple):
    """A message, or a copy within one rank. The ``blocks`` of the ``source`` become the blocks ``to`` of the
    ``target``."""

    round: int
    source: int
    from_: Space
    blocks: Blocks
    target: int
    into: Space
    to: Blocks
    reduces: bool

    @property
    def local(self) -> bool:
        return self.source == self.target

    def cells(self) -> Iterator[tuple[Cell, Cell]]:
        """Each cell that is read and the cell that it goes to."""
        for b, c in zip(each(self.blocks), each(self.to), strict=True):
            yield Cell(self.source, self.from_, b), Cell(self.target, self.into, c)


class Trace(NamedTuple):
    """``moves`` are in the order of their rounds, which count from 1. ``writes[k]`` are the writes of round k in their
    order. In round 0 they are what the ranks give, and what they copy before the first message. A barrier has one
    block, which holds the ranks that a rank has heard of."""

    collective: str
    blocks: int
    moves: tuple[Move, ...]
    writes: tuple[tuple[tuple[Cell, Block], ...], ...]

    @property
    def rounds(self) -> int:
        return len(self.writes) - 1


def given(collective: str, size: int, root: int, blocks: int) -> Iterator[tuple[Cell, Block]]:
    """What the ranks give. In a barrier each rank has heard of itself."""
    space = OUTPUT if collective in ("bcast", "barrier") else INPUT
    for rank in range(size):
        has = range(1) if collective == "barrier" else COLLECTIVES[collective].has(rank, size, root, blocks)
        for b in has:
            yield Cell(rank, space, b), Block(frozenset({rank}), b)


def results(collective: str, size: int, root: int, blocks: int) -> Iterator[tuple[Cell, Block]]:
    """What the ranks must end with. In a barrier each rank has heard of all."""
    table = COLLECTIVES[collective]
    for rank in range(size):
        wants = range(1) if collective == "barrier" else table.wants(rank, size, root, blocks)
        for b in wants:
            ranks, block = table.source(rank, size, root, b)
            yield Cell(rank, OUTPUT, b), Block(frozenset(ranks), block)


def trace(schedules: Sequence[Schedule], root: int = 0) -> Trace:
    """Follow the schedules of all ranks, which must have been proved."""
    return _Following(schedules, root).run()


class _Rank:
    """The state of a rank: its step, the round in which its last step ended, and how many messages of its step are
    left."""

    def __init__(self, rank: int, schedule: Schedule) -> None:
        self.rank = rank
        self.steps = tuple(_telling(schedule.steps)) if schedule.collective == "barrier" else schedule.steps
        self.step, self.left = 0, 0
        self.began = self.ends = 0


class _Following:
    def __init__(self, schedules: Sequence[Schedule], root: int) -> None:
        first = schedules[0]
        self.collective, self.blocks = first.collective, max(1, first.blocks)
        self.writes = [(0, *both) for both in given(self.collective, len(schedules), root, first.blocks)]
        self.holds = {cell: block for _, cell, block in self.writes}
        self.moves: list[Move] = []
        self.posted: dict[tuple[int, int, bool], deque[Send | Recv | RecvReduce]] = {}
        self.ranks = [_Rank(rank, schedule) for rank, schedule in enumerate(schedules)]
        self.ready = deque(self.ranks)

    def run(self) -> Trace:
        while self.ready:
            it = self.ready.popleft()
            if it.step < len(it.steps):
                self.begin_step(it)
        rounds = max((move.round for move in self.moves), default=0)
        writes: list[list[tuple[Cell, Block]]] = [[] for _ in range(rounds + 1)]
        for at, cell, block in self.writes:
            writes[at].append((cell, block))
        moves = tuple(sorted(self.moves, key=lambda move: (move.round, move.source)))
        return Trace(self.collective, self.blocks, moves, tuple(map(tuple, writes)))

    def begin_step(self, it: _Rank) -> None:
        it.began = it.ends
        messages = []
        for action in it.steps[it.step]:
            if isinstance(action, Copy):
                self.copy(it, action)
            else:
                messages.append(action)
        it.left = len(messages)
        if not messages:
            self.end_step(it)
        for message in messages:
            self.post(it, message)

    def end_step(self, it: _Rank) -> None:
        it.step += 1
        self.ready.append(it)

    def copy(self, it: _Rank, action: Copy) -> None:
        to, moves = target(action), action.blocks != target(action)
        at = it.began + moves
        move = Move(at, it.rank, action.from_, action.blocks, it.rank, action.into, to, False)
        self.carry(move)
        if moves:
            self.moves.append(move)
            it.ends = max(it.ends, at)

    def post(self, it: _Rank, action: Send | Recv | RecvReduce) -> None:
        """Carry the message out if its other end waits already. Otherwise this end waits."""
        sends = isinstance(action, Send)
        pair = (it.rank, action.peer) if sends else (action.peer, it.rank)
        others = self.posted.get((*pair, not sends))
        if not others:
            self.posted.setdefault((*pair, sends), deque()).append(action)
            return
        other = others.popleft()
        send, receive = (action, other) if sends else (other, action)
        assert isinstance(send, Send)
        assert not isinstance(receive, Send)
        ends = [self.ranks[rank] for rank in pair]
        at = 1 + max(end.began for end in ends)
        reduces = isinstance(receive, RecvReduce)
        move = Move(at, pair[0], send.from_, send.blocks, pair[1], receive.into, receive.blocks, reduces)
        self.carry(move, receive.mine if isinstance(receive, RecvReduce) else None)
        self.moves.append(move)
        for end in ends:
            end.ends, end.left = max(end.ends, at), end.left - 1
            if not end.left:
                self.end_step(end)

    def carry(self, move: Move, mine: Space | None = None) -> None:
        values = [(self.holds[source], cell) for source, cell in move.cells()]
        for value, cell in values:
            if mine is not None:
                value = Block(value.ranks | self.holds[cell._replace(space=mine)].ranks, value.block)
            self.holds[cell] = value
            self.writes.append((move.round, cell, value))


def _telling(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps of a barrier. Each signal tells which ranks its sender had heard of before the step."""
    for step in steps:
        yield (Copy(one(0), OUTPUT, SCRATCH),)
        told: list[Action] = []
        for action in step:
            if isinstance(action, Send):
                told.append(Send(action.peer, one(0), SCRATCH))
            elif not isinstance(action, Copy):
                told.append(RecvReduce(action.peer, one(0), OUTPUT, OUTPUT, mine_first=True))
        yield tuple(told)
