"""The order in which messages can happen, whatever the times are.

A step begins when the step before it of the same rank is done. A message happens when the steps of both its ends have
begun. All messages that can happen at once are a wave.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpicoll.analysis.cost.traffic import Traffic, Watched
from mpicoll.errors import ScheduleError

Ints = NDArray[np.int64]


class Wave(NamedTuple):
    """First the ranks ``begins`` begin their steps ``steps``. Then the messages ``happen``. Then the ranks ``copies``
    make the copies of their steps ``copied``."""

    begins: Ints
    steps: Ints
    happen: slice
    copies: Ints
    copied: Ints


def waves(traffic: Traffic, watched: Watched = iter) -> tuple[Traffic, list[Wave]]:
    """The messages in the order in which they happen, and the waves, from the first steps on.

    ``watched`` may show the progress. Raises ScheduleError where some steps can never end.
    """
    order, found, done = [], [], 0
    rank_of = np.repeat(np.arange(len(traffic.first_step) - 1), np.diff(traffic.first_step))
    for begins, happen, copied in watched(_found(traffic)):
        order.append(happen)
        found.append(Wave(rank_of[begins], begins, slice(done, done + len(happen)), rank_of[copied], copied))
        done += len(happen)
    return traffic.ordered(np.concatenate(order) if order else np.zeros(0, np.int64)), found


def _found(traffic: Traffic) -> Iterator[tuple[Ints, Ints, Ints]]:
    """For each wave, the steps that begin, the messages that happen, and the steps that end with copies."""
    first = traffic.first_step
    steps = int(first[-1])
    at = np.concatenate([traffic.send_step, traffic.recv_step])
    of = np.argsort(at, kind="stable") % max(1, len(traffic))
    starts = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=steps))])
    left = np.diff(starts)
    waits = np.full(len(traffic), 2, np.int8)
    last = np.zeros(steps, bool)
    last[first[1:][np.diff(first) > 0] - 1] = True
    copies = traffic.copied > 0
    current, over = first[:-1][np.diff(first) > 0], 0
    while len(current):
        touched = of[_runs(starts[current], left[current])]
        np.subtract.at(waits, touched, np.int8(1))
        happen = _distinct(touched[waits[touched] == 0])
        ends = np.concatenate([traffic.send_step[happen], traffic.recv_step[happen]])
        np.subtract.at(left, ends, 1)
        ended = _distinct(np.concatenate([ends, current]))
        ended = ended[left[ended] == 0]
        yield current, happen, ended[copies[ended]]
        over += len(ended)
        current = ended[~last[ended]] + 1
    if over < steps:
        raise ScheduleError("the schedule", None, None, None, "waits for ever; mpicoll verify says where")


def _distinct(numbers: Ints) -> Ints:
    """The same as np.unique, which is slow for the few numbers of a wave."""
    numbers = np.sort(numbers)
    new = np.ones(len(numbers), bool)
    np.not_equal(numbers[1:], numbers[:-1], out=new[1:])
    return numbers[new]


def _runs(starts: Ints, lengths: Ints) -> Ints:
    """For each start, as many numbers from it on as its length says, one start after the other."""
    ends = np.cumsum(lengths)
    found: Ints = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return found
