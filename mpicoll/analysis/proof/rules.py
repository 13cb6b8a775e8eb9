"""The rules for the step of one rank, whatever the other ranks do."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from mpicoll.collectives import Collective
from mpicoll.schedule import INPUT, OUTPUT, SCRATCH, Action, Blocks, Copy, Recv, RecvReduce, Send, Space, Step

__all__ = ["Problem", "Rules", "each", "first", "read_by", "shown", "target"]

Problem = tuple[int | None, str]
"""What is wrong, and the block at which it is wrong, or None."""

_SPACES = {INPUT, OUTPUT, SCRATCH}


@dataclass(frozen=True)
class Rules:
    """The rules of schedules for a collective of ``size`` ranks over so many blocks."""

    table: Collective
    size: int
    blocks: int
    uneven: bool

    @property
    def pairs(self) -> bool:
        """Whether blocks belong to pairs of ranks. Then they may change their numbers, and are never in place."""
        return self.table.name == "alltoall"

    def problems(self, rank: int, writable: range, step: Step) -> Iterator[Problem]:
        """The problems of a step of the rank, which may write the blocks ``writable`` of OUTPUT. Only the first problem
        counts: the others may follow from it."""
        if not isinstance(step, tuple) or isinstance(step, Action):  # an action is a tuple too
            yield None, f"is not a tuple of actions, but {step!r}"
        for action in step:
            if not isinstance(action, Action):
                yield None, f"names {action!r}, which is no action"
            yield from self._of_blocks(action.blocks)
            if isinstance(action, Copy):
                yield from self._of_copy(rank, action)
            elif not isinstance(action.peer, int) or not 0 <= action.peer < self.size or action.peer == rank:
                yield None, f"names rank {action.peer!r} as its peer"
            reads = read_by(action)
            if reads is not None and reads not in _SPACES:
                yield None, f"reads a space {reads!r}"
            if not isinstance(action, Send):
                yield from self._of_writing(writable, action)
        yield from self._of_neighbours(step)

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

    def _of_blocks(self, blocks: Blocks) -> Iterator[Problem]:
        if not isinstance(blocks, tuple):
            yield None, f"names blocks {blocks!r}, which is no tuple of ranges"
        for r in blocks:
            if not isinstance(r, range):
                yield None, f"names blocks {blocks!r}, which is no tuple of ranges"
            if r.step != 1 or not 0 <= r.start < r.stop <= self.blocks:
                yield r.start, f"names blocks {r} of {self.blocks}"

    def _of_copy(self, rank: int, copy: Copy) -> Iterator[Problem]:
        to = target(copy)
        yield from self._of_blocks(to)
        if not self.fits(rank, copy.from_, copy.blocks, rank, copy.into, to):
            yield first(to), f"copies blocks {shown(copy.blocks)} to {shown(to)}, whose sizes may differ"

    def _of_writing(self, writable: range, action: Recv | RecvReduce | Copy) -> Iterator[Problem]:
        if action.into not in (OUTPUT, SCRATCH):
            yield first(target(action)), f"writes {action.into}"
        if isinstance(action, RecvReduce) and not self.table.reduces:
            yield first(action.blocks), f"reduces, which no {self.table.name} does"
        if action.into == OUTPUT:
            for r in target(action):
                if r.start < writable.start or r.stop > writable.stop:
                    yield (
                        next(b for b in r if b not in writable),
                        "writes output, which has no such block to write here",
                    )

    def _of_neighbours(self, step: Step) -> Iterator[Problem]:
        """Problems between actions: one reads or writes what another one writes, or an action moves a block onto a
        block that it reads."""
        writes = [
            (action.into, r.start, r.stop, i)
            for i, action in enumerate(step)
            if not isinstance(action, Send)
            for r in target(action)
        ]
        writes.sort()
        for (into, _, stop, _), (next_into, start, _, _) in pairwise(writes):
            if into == next_into and start < stop:
                yield start, f"writes {into} twice in one step"
        for i, action in enumerate(step) if writes else ():
            space = read_by(action)
            if space is None:
                continue
            memory = OUTPUT if space == INPUT and not self.pairs else space
            moves = isinstance(action, Copy) and action.blocks != target(action)
            for r in action.blocks:
                at = bisect_right(writes, (memory, r.start, self.blocks, 0))
                for into, start, stop, writer in writes[max(0, at - 1) :]:
                    if (into, start) >= (memory, r.stop):
                        break
                    if into == memory and stop > r.start and (writer != i or moves):
                        yield max(start, r.start), f"reads {space}, which is written in the same step"


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
    match action:
        case Send() | Copy():
            return action.from_
        case RecvReduce():
            return action.mine
    return None
