"""The rules for the step of one rank, whatever the other ranks do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from mpicoll.algorithms.collectives import Collective
from mpicoll.algorithms.steps import INPUT, OUTPUT, SPACES, Action, Blocks, Copy, Recv, RecvReduce, Send, Space, Step

Problem = tuple[int | None, str]  # what is wrong, and the block at which it is wrong, or None

_ALTERNATE = " (receive into scratch: output and scratch may take turns, so that the last step writes output)"


@dataclass(frozen=True)
class Rules:
    """The rules of schedules for a collective of ``size`` ranks over so many blocks."""

    table: Collective
    size: int
    blocks: int
    uneven: bool

    @cached_property
    def pairs(self) -> bool:
        """Whether blocks belong to pairs of ranks. Then they may change their numbers, and are never in place."""
        return self.table.source(0, 2, 0, 1)[1] != 1

    def problem(self, rank: int, writable: range, step: Step) -> Problem | None:
        """The first problem of a step of the rank, which may write the blocks ``writable`` of OUTPUT."""
        if not isinstance(step, tuple) or isinstance(step, Action):  # an action is a tuple too
            comma = " (a comma is missing: yield (action,))" if isinstance(step, Action) else ""
            return None, f"is not a tuple of actions, but {step!r}{comma}"
        for action in step:
            if not isinstance(action, Action):
                return None, f"names {action!r}, which is no action"
            found = self._of_blocks(action.blocks) or self._of_action(rank, action)
            if found is None and not isinstance(action, Send):
                found = self._of_writing(writable, action)
            if found is not None:
                return found
        return self._of_neighbours(step)

    def fits(self, source: int, from_: Space, blocks: Blocks, rank: int, into: Space, to: Blocks) -> bool:
        """Whether blocks of rank ``source`` have, run by run, the sizes of the blocks of ``rank`` that they go to."""
        if not self.pairs:
            return blocks == to
        if [len(r) for r in blocks] != [len(r) for r in to]:
            return False
        if not self.uneven:
            return True

        def pair(rank: int, space: Space, block: int) -> tuple[int, int]:
            return (rank, block) if space == INPUT else (block, rank)

        both = zip(each(blocks), each(to), strict=True)
        return all(pair(source, from_, b) == pair(rank, into, c) for b, c in both)

    def _of_blocks(self, blocks: Blocks) -> Problem | None:
        if not isinstance(blocks, tuple) or not all(isinstance(r, range) for r in blocks):
            return None, f"names blocks {blocks!r}, which is no tuple of ranges"
        for r in blocks:
            if r.step != 1 or not 0 <= r.start < r.stop <= self.blocks:
                return r.start, f"names blocks {r}: there are blocks 0 to {self.blocks - 1}"
        return None

    def _of_action(self, rank: int, action: Action) -> Problem | None:
        if isinstance(action, Copy):
            to = target(action)
            if found := self._of_blocks(to):
                return found
            if not self.fits(rank, action.from_, action.blocks, rank, action.into, to):
                return first(to), f"copies blocks {shown(action.blocks)} to {shown(to)}, whose sizes may differ"
        elif action.peer == rank:
            return None, "names itself as its peer"
        elif not isinstance(action.peer, int) or not 0 <= action.peer < self.size:
            return None, f"names rank {action.peer!r} as its peer: there are ranks 0 to {self.size - 1}"
        reads = read_by(action)
        if reads is not None and reads not in SPACES:
            return None, f"reads {reads!r}, which is no space: expected {', '.join(SPACES)}"
        return None

    def _of_writing(self, writable: range, action: Recv | RecvReduce | Copy) -> Problem | None:
        if action.into not in SPACES[1:]:  # INPUT is never written
            return first(target(action)), f"writes {action.into}: expected {' or '.join(SPACES[1:])}"
        if isinstance(action, RecvReduce) and not self.table.reduces:
            return first(action.blocks), f"reduces, which no {self.table.name} does"
        if action.into == OUTPUT:
            for r in target(action):
                if r.start < writable.start or r.stop > writable.stop:
                    block = next(b for b in r if b not in writable)
                    return block, "writes output, which has no such block to write here"
        return None

    def _of_neighbours(self, step: Step) -> Problem | None:
        """A problem between actions: one reads or writes what another writes, or moves a block onto one it reads."""
        writers: dict[tuple[Space, int], int] = {}
        for i, action in enumerate(step):
            if isinstance(action, Send):
                continue
            for block in each(target(action)):
                if (action.into, block) in writers:
                    return block, f"writes {action.into} twice in one step"
                writers[action.into, block] = i
        for i, action in enumerate(step) if writers else ():
            space = read_by(action)
            if space is None:
                continue
            memory = OUTPUT if space == INPUT and not self.pairs else space
            moves = isinstance(action, Copy) and action.blocks != target(action)
            for block in each(action.blocks):
                if (moves and (memory, block) in writers) or writers.get((memory, block), i) != i:
                    in_place = "" if space == memory else ": wrong in place, where both are one memory"
                    hint = "" if self.pairs or not isinstance(action, Send) else _ALTERNATE
                    return block, f"reads {space}, and the same step writes {memory}{in_place}{hint}"
        return None


def each(blocks: Blocks) -> Iterator[int]:
    """The blocks one by one."""
    for r in blocks:
        yield from r


def first(blocks: Blocks) -> int | None:
    """The first of the blocks, or None for a signal."""
    return blocks[0].start if blocks else None


def shown(blocks: Blocks) -> str:
    """The blocks as text, such as 0, 4-7."""
    return ", ".join(str(r.start) if len(r) == 1 else f"{r.start}-{r.stop - 1}" for r in blocks) or "none"


def target(action: Recv | RecvReduce | Copy) -> Blocks:
    """The blocks that the action writes."""
    return action.blocks if not isinstance(action, Copy) or action.to is None else action.to


def read_by(action: Action) -> Space | None:
    """The space that the action reads, or None for a receive without a reduction."""
    if isinstance(action, RecvReduce):
        return action.mine
    return None if isinstance(action, Recv) else action.from_
