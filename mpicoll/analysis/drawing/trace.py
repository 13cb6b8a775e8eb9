"""What a schedule does in which round, and what each rank holds after it.

The steps of different ranks do not happen at the same times: in a tree some ranks wait while others work. The round of
a message is one more than the last round that either of its ranks must finish before it. So it is the length of the
longest chain of messages that ends with it. A copy to other blocks of the same rank also takes a round. A copy to the
same blocks takes none, as it shows nothing new.

A proof tells what the ranks do. If it finds a fault, the rank at fault stops, and the others go on as far as they can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Blocks, Copy, Recv, RecvReduce, Send, Space, one
from mpicoll.analysis.proof.rules import each, target
from mpicoll.analysis.proof.verify import Listener


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


SIGNAL = one(0)
"""In a barrier, the block that holds the ranks that a rank has heard of."""


class Tracing(Listener):
    """Follows the ranks while their schedules are proved."""

    def __init__(self, collective: str, size: int, root: int, blocks: int) -> None:
        self.collective, self.blocks = collective, max(1, blocks)
        self.signals = collective == "barrier"
        self.writes = [(0, *both) for both in given(collective, size, root, blocks)]
        self.holds = {cell: block for _, cell, block in self.writes}
        self.moves: list[Move] = []
        self.began: list[list[int]] = [[] for _ in range(size)]
        """For each step that a rank has begun, the last round before it."""
        self.ends = [0] * size
        """The last round of each rank so far."""
        self.waiting: dict[tuple[int, int], list[Send | Recv | RecvReduce]] = {}
        """For each rank and step, the ends of messages that are not carried yet."""

    @property
    def rounds(self) -> int:
        return max((move.round for move in self.moves), default=0)

    def trace(self, rounds: int) -> Trace:
        """What has happened in this number of rounds."""
        writes: list[list[tuple[Cell, Block]]] = [[] for _ in range(rounds + 1)]
        for at, cell, block in self.writes:
            if at <= rounds:
                writes[at].append((cell, block))
        moves = sorted((move for move in self.moves if move.round <= rounds), key=lambda m: (m.round, m.source))
        return Trace(self.collective, self.blocks, tuple(moves), tuple(map(tuple, writes)))

    def begins(self, rank: int) -> None:
        at = self.ends[rank]
        self.began[rank].append(at)
        if self.signals:  # a signal tells which ranks its sender had heard of before the step
            self.carry(Move(at, rank, OUTPUT, SIGNAL, rank, SCRATCH, SIGNAL, False))

    def copies(self, rank: int, action: Copy) -> None:
        if self.signals:
            return
        to, moves = target(action), action.blocks != target(action)
        at = self.began[rank][-1] + moves
        move = Move(at, rank, action.from_, action.blocks, rank, action.into, to, False)
        self.carry(move)
        if moves:
            self.moves.append(move)
            self.ends[rank] = max(self.ends[rank], at)

    def posts(self, rank: int, action: Send | Recv | RecvReduce) -> None:
        self.waiting.setdefault((rank, len(self.began[rank]) - 1), []).append(action)

    def carries(self, source: int, send: Send, to: int, receive: Recv | RecvReduce) -> None:
        at = 1 + max(self.began[source][-1], self.began[to][-1])
        mine = receive.mine if isinstance(receive, RecvReduce) else None
        move = Move(at, source, send.from_, send.blocks, to, receive.into, receive.blocks, mine is not None)
        if self.signals:
            mine, move = OUTPUT, Move(at, source, SCRATCH, SIGNAL, to, OUTPUT, SIGNAL, True)
        self.carry(move, mine)
        self.moves.append(move)
        for rank, action in ((source, send), (to, receive)):
            self.ends[rank] = max(self.ends[rank], at)
            self.end_message(rank, action)

    def end_message(self, rank: int, action: Send | Recv | RecvReduce) -> None:
        key = rank, len(self.began[rank]) - 1
        left = self.waiting[key]
        del left[next(i for i, other in enumerate(left) if other is action)]
        if not left:
            del self.waiting[key]

    def carry(self, move: Move, mine: Space | None = None) -> None:
        values = [(self.holds[source], cell) for source, cell in move.cells()]
        for value, cell in values:
            if mine is not None:
                value = Block(value.ranks | self.holds[cell._replace(space=mine)].ranks, value.block)
            self.holds[cell] = value
            self.writes.append((move.round, cell, value))
