"""What a schedule does in which round, and what each rank holds after it.

The steps of different ranks do not happen at the same times: in a tree some ranks wait while others work. The round of
a message is one more than the last round that either of its ranks must finish before it. So it is the length of the
longest chain of messages that ends with it. A copy to other blocks of the same rank also takes a round. A copy to the
same blocks takes none, as it shows nothing new.

A proof tells what the ranks do. If it finds a fault, the rank at fault stops, and the others go on as far as they can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

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


Missing = Literal["", "source", "target"]
"""The end of a message at which no rank sends or receives it."""


class Move(NamedTuple):
    """A message, or a local copy within one rank: the cells that it reads, and those that they go to. If it reduces,
    it ``combines`` them with other cells of the receiver. Where one end is missing, the cells are those where it would
    be."""

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
    """Follows the ranks while their schedules are proved.

    Rounds count from 1. In round 0, the ``writes`` are what the ranks give, and what they copy before the first
    message. A barrier has one block, which holds the ranks that a rank has heard of."""

    def __init__(self, collective: str, size: int, root: int, blocks: int) -> None:
        self.collective, self.size, self.root, self.blocks = collective, size, root, max(1, blocks)
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

    def written(self, number: int) -> list[tuple[Cell, Block]]:
        """What a round writes, in order."""
        return [(cell, block) for at, cell, block in self.writes if at == number]

    def moved(self, number: int) -> list[Move]:
        """The messages and copies of a round, by the rank that they come from."""
        return sorted(
            (move for move in self.moves if move.round == number), key=lambda m: [c.rank for c in m.reads[:1]]
        )

    def begins(self, rank: int) -> None:
        at = self.ends[rank]
        self.began[rank].append(at)
        if self.signals:  # a signal tells which ranks its sender had heard of before the step
            self.carry(Move(at, cells(rank, OUTPUT, SIGNAL), cells(rank, SCRATCH, SIGNAL), SIGNAL, False, True))

    def copies(self, rank: int, action: Copy) -> None:
        if self.signals:
            return
        to, moves = target(action), action.blocks != target(action)
        at = self.began[rank][-1] + moves
        reads, writes = cells(rank, action.from_, action.blocks), cells(rank, action.into, to)
        move = Move(at, reads, writes, action.blocks, False, True)
        self.carry(move)
        if moves:
            self.moves.append(move)
            self.ends[rank] = max(self.ends[rank], at)

    def posts(self, rank: int, action: Send | Recv | RecvReduce) -> None:
        self.waiting.setdefault((rank, len(self.began[rank]) - 1), []).append(action)

    def carries(self, source: int, send: Send, to: int, receive: Recv | RecvReduce) -> None:
        at = 1 + max(self.began[source][-1], self.began[to][-1])
        reads, writes = cells(source, send.from_, send.blocks), cells(to, receive.into, receive.blocks)
        reduces = isinstance(receive, RecvReduce)
        mine = cells(to, receive.mine, receive.blocks) if isinstance(receive, RecvReduce) else ()
        move = Move(at, reads, writes, send.blocks, reduces, False, mine)
        if self.signals:
            heard = cells(to, OUTPUT, SIGNAL)
            move = Move(at, cells(source, SCRATCH, SIGNAL), heard, SIGNAL, True, False, heard)
        self.carry(move)
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

    def carry(self, move: Move) -> None:
        values = [self.holds[cell] for cell in move.reads]
        if move.combines:
            both = zip(values, move.combines, strict=True)
            values = [Block(value.ranks | self.holds[mine].ranks, value.block) for value, mine in both]
        for value, cell in zip(values, move.writes, strict=True):
            self.holds[cell] = value
            self.writes.append((move.round, cell, value))
