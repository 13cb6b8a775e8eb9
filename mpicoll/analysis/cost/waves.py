"""In which order messages can happen: the structure of a schedule's execution, whatever the times are.

A step begins when the one before it of the same rank is done, and a message happens when both its ends have begun. All
that can happen at once is a wave.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpicoll.analysis.cost.messages import Messages
from mpicoll.errors import ScheduleError

__all__ = ["Wave", "waves"]

Ints = NDArray[np.int64]


class Wave(NamedTuple):
    """``begins`` are the ranks that begin a step (number ``steps``), then ``happen`` the messages that do, and then
    ``ends`` are the ranks whose step (``ended``) is over."""

    begins: Ints
    steps: Ints
    happen: Ints
    ends: Ints
    ended: Ints


def waves(messages: Messages) -> Iterator[Wave]:
    """The waves, from the first steps on. Raises ScheduleError where some steps can never end."""
    first = messages.first_step
    steps = int(first[-1])
    rank_of = np.repeat(np.arange(len(first) - 1), np.diff(first))
    at = np.concatenate([messages.send_step, messages.recv_step])
    of = np.argsort(at, kind="stable") % max(1, len(messages))
    starts = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=steps))])
    left = np.diff(starts)
    waits = np.full(len(messages), 2, np.int8)
    current, over = first[:-1][np.diff(first) > 0], 0
    while len(current):
        touched = of[_runs(starts[current], left[current])]
        np.subtract.at(waits, touched, np.int8(1))
        happen = np.unique(touched[waits[touched] == 0])
        ends = np.concatenate([messages.send_step[happen], messages.recv_step[happen]])
        np.subtract.at(left, ends, 1)
        ended = np.unique(np.concatenate([ends, current]))
        ended = ended[left[ended] == 0]
        yield Wave(rank_of[current], current, happen, rank_of[ended], ended)
        over += len(ended)
        current = ended[ended + 1 < first[rank_of[ended] + 1]] + 1
    if over < steps:
        raise ScheduleError("the schedule", None, None, None, "waits for ever; mpicoll verify says where")


def _runs(starts: Ints, lengths: Ints) -> Ints:
    """The numbers from each start on, as many as its length, on end."""
    ends = np.cumsum(lengths)
    found: Ints = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return found
