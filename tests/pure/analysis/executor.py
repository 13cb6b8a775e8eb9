"""Runs the schedules of all ranks on values: naive, and apart from all that the verifier is made of.

An element is a pair of an int, which any right reduction adds to the same sum, and a text, which tells in which order
it was combined. A block is a tuple of elements. What was never written is garbage, and does not look like it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Action, Copy, RecvReduce, Schedule, Send

Element = tuple[int, str]
Block = tuple[Element, ...]
WORD = 1 << 64


class Misbehaves(Exception):
    """The schedules hang, lose a message, write where they must not, or end with a wrong result."""


def plus(a: Block, b: Block) -> Block:
    return tuple(((m + n) % WORD, f"({s}+{t})") for (m, s), (n, t) in zip(a, b, strict=True))


class Job:
    """``buffered``: a message is stored on its way; else its sender waits for the receive. ``in_place``: INPUT and
    OUTPUT are one memory. ``shuffled``: the actions of a step take place in a random order, else in that given."""

    def __init__(
        self,
        schedules: Sequence[Schedule],
        root: int,
        uneven: bool,
        seed: int,
        buffered: bool,
        in_place: bool,
        shuffled: bool,
    ) -> None:
        self.schedules, self.root, self.size, self.buffered = schedules, root, len(schedules), buffered
        self.table, self.blocks = COLLECTIVES[schedules[0].collective], schedules[0].blocks
        self.pairs = self.table.name == "alltoall"
        self.in_place = in_place and not self.pairs
        self.order = random.Random(seed) if shuffled else None
        draw = random.Random(seed)
        several = uneven if self.pairs else True
        self.counts = [[draw.randint(1, 3) if several else 2 for _ in range(self.size)] for _ in range(self.size)]
        self.lengths = [draw.randint(1, 3) for _ in range(self.blocks)]
        self.memory = [self.beginning(rank, draw) for rank in range(self.size)]
        self.given = [list(m[INPUT]) for m in self.memory]
        self.before = [list(m[OUTPUT]) for m in self.memory]
        self.under_way: dict[tuple[int, int, int], tuple[list[Element], set[int]]] = {}
        self.sent: Counter[tuple[int, int]] = Counter()
        self.taken: Counter[tuple[int, int]] = Counter()
        self.knows = [{rank} for rank in range(self.size)]

    def length(self, rank: int, space: str, block: int) -> int:
        if not self.pairs:
            return self.lengths[block]
        return self.counts[rank][block] if space == INPUT else self.counts[block][rank]

    def beginning(self, rank: int, draw: random.Random) -> dict[str, list[Block]]:
        def filled(space: str, what: str) -> list[Block]:
            return [
                tuple((draw.getrandbits(64), f"{what}{rank}") for _ in range(self.length(rank, space, b)))
                for b in range(self.blocks)
            ]

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

    def run(self) -> list[dict[int, Block]]:
        """Each rank's result; raises Misbehaves."""
        ranks = [self.rank(r) for r in range(self.size)]
        running = dict(enumerate(ranks))
        while running:
            progress = False
            for r, it in list(running.items()):
                moved = next(it, None)
                if moved is None:
                    del running[r]
                progress = progress or moved is not False
            if not progress:
                raise Misbehaves("hangs")
        return self.results()

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
            posted: list[tuple[int, int, int]] = []
            while todo or posted:
                left = [(a, n) for a, n in todo if not self.do(rank, a, n, known, posted)]
                unread = [] if self.buffered else [key for key in posted if key in self.under_way]
                yield len(left) < len(todo) or len(unread) < len(posted)
                todo, posted = left, unread

    def do(self, rank: int, action: Action, n: int, known: set[int], posted: list[tuple[int, int, int]]) -> bool:
        memory = self.memory[rank]
        match action:
            case Send(peer, blocks, from_):
                key = (rank, peer, n)
                self.under_way[key] = ([e for r in blocks for b in r for e in memory[from_][b]], known)
                posted.append(key)
            case Copy(blocks, from_, into, to):
                cells = [b for r in (to or blocks) for b in r]
                self.put(rank, into, cells, [e for r in blocks for b in r for e in memory[from_][b]])
            case _:
                if (action.peer, rank, n) not in self.under_way:
                    return False
                elements, their = self.under_way.pop((action.peer, rank, n))
                self.knows[rank] |= their
                cells = [b for r in action.blocks for b in r]
                if isinstance(action, RecvReduce):
                    mine = tuple(e for b in cells for e in memory[action.mine][b])
                    if len(mine) != len(elements) or not self.table.reduces:
                        raise Misbehaves("reduces what it cannot")
                    theirs = tuple(elements)
                    elements = list(plus(mine, theirs) if action.mine_first else plus(theirs, mine))
                self.put(rank, action.into, cells, elements)
        return True

    def put(self, rank: int, space: str, cells: list[int], elements: list[Element]) -> None:
        lengths = [self.length(rank, space, b) for b in cells]
        if sum(lengths) != len(elements):
            raise Misbehaves(f"rank {rank} has no room for what it takes in")
        for b, n in zip(cells, lengths, strict=True):
            self.memory[rank][space][b], elements = tuple(elements[:n]), elements[n:]

    def results(self) -> list[dict[int, Block]]:
        if self.under_way:
            raise Misbehaves("leaves messages behind")
        results: list[dict[int, Block]] = []
        for rank, memory in enumerate(self.memory):
            wants = self.table.wants(rank, self.size, self.root, self.blocks)
            if self.table.name == "barrier" and len(self.knows[rank]) < self.size:
                raise Misbehaves(f"rank {rank} leaves a barrier early")
            if not self.in_place and memory[INPUT] != self.given[rank]:
                raise Misbehaves(f"rank {rank} writes its input")
            if any(memory[OUTPUT][b] != self.before[rank][b] for b in range(self.blocks) if b not in wants):
                raise Misbehaves(f"rank {rank} writes where its output is not")
            results.append({b: memory[OUTPUT][b] for b in wants})
        self.check(results)
        return results

    def check(self, results: list[dict[int, Block]]) -> None:
        has = [self.table.has(r, self.size, self.root, self.blocks) for r in range(self.size)]
        source = self.before if self.table.name == "bcast" else self.given
        inputs = [[source[r][b] for b in has[r]] for r in range(self.size)]
        expected = self.table.outcome(inputs, self.root, added)
        for rank, (found, right) in enumerate(zip(results, expected, strict=True)):
            if [numbers(b) for b in found.values()] != [numbers(b) for b in right or ()]:
                raise Misbehaves(f"rank {rank} ends with a wrong result")
            if self.table.name == "allreduce" and found != results[0]:
                raise Misbehaves(f"rank {rank} combines in another order than rank 0")


def numbers(block: Block) -> list[int]:
    return [n for n, _ in block]


def added(contributions: Sequence[Block]) -> Block:
    total = contributions[0]
    for each in contributions[1:]:
        total = plus(total, each)
    return total


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
