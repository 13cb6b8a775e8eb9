"""Runs the schedules of all ranks on values: naive, and apart from all that the verifier is made of."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Action, Copy, RecvReduce, Schedule, Send

WORD = 1 << 64
Key = tuple[int, int, int]
"""Of a message: from which rank, to which, and its number between them."""


class Block(NamedTuple):
    """Any right reduction adds the numbers to the same sum. The text tells in which order they were combined. What was
    never written is garbage, and does not look like it."""

    length: int
    number: int
    text: str

    def plus(self, other: Block) -> Block:
        return Block(self.length, (self.number + other.number) % WORD, f"({self.text}+{other.text})")


class Misbehaves(Exception):
    """The schedules hang, lose a message, write where they must not, or end with a wrong result."""


def lengths(blocks: Sequence[Block]) -> list[int]:
    return [block.length for block in blocks]


class Job:
    """``buffered``: a message is stored on its way; else its sender waits for the receive. ``in_place``: INPUT and
    OUTPUT are one memory. ``shuffled``: the actions of a step take place in a random order, else in that given."""

    def __init__(
        self, schedules: Sequence[Schedule], root: int, uneven: bool, seed: int, buffered: bool, in_place: bool,
        shuffled: bool,
    ) -> None:  # fmt: skip
        self.schedules, self.root, self.size, self.buffered = schedules, root, len(schedules), buffered
        self.table, self.blocks = COLLECTIVES[schedules[0].collective], schedules[0].blocks
        self.pairs = self.table.name == "alltoall"
        self.in_place = in_place and not self.pairs
        self.order = random.Random(seed) if shuffled else None
        draw = random.Random(seed)
        several = uneven or not self.pairs
        self.counts = [[draw.randint(1, 3) if several else 2 for _ in range(self.size)] for _ in range(self.size)]
        self.lengths = [draw.randint(1, 3) for _ in range(self.blocks)]
        self.memory = [self.beginning(rank, draw) for rank in range(self.size)]
        self.given = [list(m[INPUT]) for m in self.memory]
        self.before = [list(m[OUTPUT]) for m in self.memory]
        self.under_way: dict[Key, tuple[list[Block], set[int]]] = {}
        self.sent: Counter[tuple[int, int]] = Counter()
        self.taken: Counter[tuple[int, int]] = Counter()
        self.knows = [{rank} for rank in range(self.size)]

    def beginning(self, rank: int, draw: random.Random) -> dict[str, list[Block]]:
        def length(space: str, block: int) -> int:
            if not self.pairs:
                return self.lengths[block]
            return self.counts[rank][block] if space == INPUT else self.counts[block][rank]

        def filled(space: str, what: str) -> list[Block]:
            return [Block(length(space, b), draw.getrandbits(64), f"{what}{rank}") for b in range(self.blocks)]

        memory: dict[str, list[Block]] = {
            space: filled(space, f"garbage in {space} of ") for space in (INPUT, OUTPUT, SCRATCH)
        }
        values = filled(INPUT, "")
        first = OUTPUT if self.table.name == "bcast" else INPUT
        for b in self.table.has(rank, self.size, self.root, self.blocks):
            memory[first][b] = values[b]
        if self.in_place and self.table.name != "bcast":
            memory[OUTPUT] = memory[INPUT]
        return memory

    def run(self) -> None:
        running = [self.rank(rank) for rank in range(self.size)]
        while running:
            moved = [next(it, None) for it in running]
            if all(each is False for each in moved):
                raise Misbehaves("hangs")
            running = [it for it, each in zip(running, moved, strict=True) if each is not None]
        self.check()

    def rank(self, rank: int) -> Iterator[bool]:
        """Yields True after progress, False when it can do nothing."""
        for step in self.schedules[rank].steps:
            known = set(self.knows[rank])
            todo: list[tuple[Action, int]] = []
            for action in step:
                pair = (rank, action.peer) if isinstance(action, Send) else (getattr(action, "peer", rank), rank)
                counter = self.sent if isinstance(action, Send) else self.taken
                todo.append((action, counter[pair]))
                counter[pair] += 1
            if self.order:
                self.order.shuffle(todo)
            posted: list[Key] = []
            while todo or posted:
                left = [(a, n) for a, n in todo if not self.do(rank, a, n, known, posted)]
                unread = [] if self.buffered else [key for key in posted if key in self.under_way]
                yield len(left) < len(todo) or len(unread) < len(posted)
                todo, posted = left, unread

    def do(self, rank: int, action: Action, n: int, known: set[int], posted: list[Key]) -> bool:
        memory, cells = self.memory[rank], [b for r in action.blocks for b in r]
        match action:
            case Send(peer, _, from_):
                key = (rank, peer, n)
                self.under_way[key] = [memory[from_][b] for b in cells], known
                posted.append(key)
            case Copy(blocks, from_, into, to):
                self.put(memory[into], [b for r in (to or blocks) for b in r], [memory[from_][b] for b in cells])
            case _:
                if (action.peer, rank, n) not in self.under_way:
                    return False
                values, their = self.under_way.pop((action.peer, rank, n))
                self.knows[rank] |= their
                if isinstance(action, RecvReduce):
                    mine = [memory[action.mine][b] for b in cells]
                    if lengths(mine) != lengths(values) or not self.table.reduces:
                        raise Misbehaves("reduces what it cannot")
                    both = zip(*((mine, values) if action.mine_first else (values, mine)), strict=True)
                    values = [a.plus(b) for a, b in both]
                self.put(memory[action.into], cells, values)
        return True

    def put(self, memory: list[Block], cells: list[int], values: list[Block]) -> None:
        if lengths([memory[b] for b in cells]) != lengths(values):
            raise Misbehaves("takes in what has another length")
        for b, value in zip(cells, values, strict=True):
            memory[b] = value

    def check(self) -> None:
        if self.under_way:
            raise Misbehaves("leaves messages behind")
        source, first = self.before if self.table.name == "bcast" else self.given, None
        has = [self.table.has(r, self.size, self.root, self.blocks) for r in range(self.size)]
        inputs = [[source[r][b] for b in has[r]] for r in range(self.size)]
        right = self.table.outcome(inputs, self.root, lambda contributions: reduce(Block.plus, contributions))
        for rank, memory in enumerate(self.memory):
            wants = self.table.wants(rank, self.size, self.root, self.blocks)
            found = [memory[OUTPUT][b] for b in wants]
            first = first or found
            if self.table.name == "barrier" and len(self.knows[rank]) < self.size:
                raise Misbehaves(f"rank {rank} leaves a barrier early")
            if not self.in_place and memory[INPUT] != self.given[rank]:
                raise Misbehaves(f"rank {rank} writes its input")
            if any(memory[OUTPUT][b] != self.before[rank][b] for b in range(self.blocks) if b not in wants):
                raise Misbehaves(f"rank {rank} writes where its output is not")
            if [block.number for block in found] != [block.number for block in right[rank] or ()]:
                raise Misbehaves(f"rank {rank} ends with a wrong result")
            if self.table.name == "allreduce" and found != first:
                raise Misbehaves(f"rank {rank} combines in another order than rank 0")


def misbehaves(schedules: Sequence[Schedule], root: int, uneven: bool, seed: int) -> str | None:
    """In what way the schedules do not do what their collective means, under any of several conditions."""
    for buffered, in_place, shuffled in ((True, False, False), (True, True, True), (False, True, True)):
        try:
            Job(schedules, root, uneven, seed, buffered, in_place, shuffled).run()
        except Misbehaves as e:
            return str(e)
        except (IndexError, KeyError, ValueError) as e:  # a block or a peer that is not there
            return repr(e)
    return None
