"""Pipelines. The segments of a vector follow each other through the ranks, one step apart.

A rank's part in a pipeline is a few stages. Each stage has a start, and handles segment s at the time start + s. A
message is one stage on each of its two ranks, with the same start. Each rank does everything for one time in one step.
So ranks never wait for each other in a circle, and each needs to know only its own neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpicoll.schedule import Action, Blocks, Steps, one

__all__ = ["Stage", "pipelined"]


class Stage(NamedTuple):
    """What is done to each segment, from time ``start`` on. The segments are the blocks from ``first`` on."""

    start: int
    action: Callable[[Blocks], Action]
    first: int = 0


def pipelined(stages: Sequence[Stage], segments: int) -> Steps:
    """A step for each time at which any of the stages has a segment to handle."""
    times: dict[int, list[Action]] = {}
    for start, action, first in stages:
        for s in range(segments):
            times.setdefault(start + s, []).append(action(one(first + s)))
    for time in sorted(times):
        yield tuple(times[time])
