"""Pipelines. The segments of a vector follow each other through the ranks, one step apart.

A rank's part in a pipeline is a few stages. Each stage has a start, and handles segment s at the time start + s. A
message is one stage on each of its two ranks, with the same start. Each rank does everything for one time in one step.
So ranks never wait for each other in a circle, and each needs to know only its own neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpicoll.algorithms.steps import Recv, RecvReduce, Send, Step, one

Message = Send | Recv | RecvReduce


class Stage(NamedTuple):
    """``action`` handles the first segment, which is its block, at time ``start``. Each further segment is the next
    block and follows at the next time."""

    start: int
    action: Message


class Pipeline:
    """The steps of some stages: one for each time at which any of the stages has a segment to handle."""

    def __init__(self, stages: Sequence[Stage], segments: int) -> None:
        self.stages, self.segments = stages, segments
        self._first_step: dict[int, int] = {}
        """By the start of a stage."""
        self._steps = 0
        starts = sorted({stage.start for stage in stages})
        end = min(starts, default=0)
        for start in starts:
            shared = max(0, end - start)  # steps that stages before it have too
            self._first_step[start] = self._steps - shared
            self._steps += segments - shared
            end = start + segments

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Step]:
        steps: list[list[Message]] = [[] for _ in range(len(self))]
        for first_step, action in self.first_steps():
            make, (peer, (block,), *others) = type(action)._make, action
            for s in range(self.segments):
                steps[first_step + s].append(make((peer, one(block.start + s), *others)))
        yield from map(tuple, steps)

    def first_steps(self) -> Iterator[tuple[int, Message]]:
        """The action of each stage, and in which step it is done to the first segment; it is done to each of the other
        segments a step later than to the one before."""
        for start, action in self.stages:
            yield self._first_step[start], action
