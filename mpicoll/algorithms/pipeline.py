"""Pipelines: the segments of a vector follow each other through the ranks, a step apart.

A rank's part in a pipeline is a few stages. Each has a start, and treats segment s at the time start + s. A message is
one stage of each of the two ranks, with the same start. So ranks that do what is to be done at each time in one step
never wait for each other in a circle, without any of them knowing more than its own neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpicoll.schedule import Action, Blocks, Steps, one

__all__ = ["Stage", "pipelined"]


class Stage(NamedTuple):
    """What is done to each segment, from time ``start`` on; the segments are blocks ``first`` and up."""

    start: int
    action: Callable[[Blocks], Action]
    first: int = 0


def pipelined(stages: Sequence[Stage], segments: int) -> Steps:
    """A step for each time at which any of the stages has a segment to treat."""
    times: dict[int, list[Action]] = {}
    for start, action, first in stages:
        for s in range(segments):
            times.setdefault(start + s, []).append(action(one(first + s)))
    for time in sorted(times):
        yield tuple(times[time])
