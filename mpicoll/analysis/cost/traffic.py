"""The messages of the schedules of all ranks, as arrays: which ranks they join, in which steps, and how much they
carry.

In many algorithms rank r and rank r + period do the same, with all ranks moved by the period. Then only the ranks of
the first period are built. They represent the others. Without any such symmetry the period is the number of ranks.

A step begins when the step before it of the same rank is done. A message happens when the steps of both its ends have
begun. All messages that can happen at once are a wave, whatever the times are."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpicoll.algorithms.steps import Blocks, Copy, RecvReduce, Schedule, Send
from mpicoll.errors import MpicollError, ScheduleError

Ints = NDArray[np.int64]
Of = Callable[[int], Schedule]  # the schedule of a rank
MOST = 3_000_000  # the most messages that are kept. To simulate more would take minutes and gigabytes.


class TooManyError(MpicollError):
    """There are more messages than can be kept."""


def shortest_period(schedule_of: Of, size: int, unit: int) -> int:
    """The shortest period, of ``unit`` or twice as many ranks, that holds for a sample of the ranks; else ``size``."""
    known = cache(schedule_of)
    for period in (unit, 2 * unit):
        last = size // period - 1
        sample = [of * period + rank for of in {last, 1, (last + 1) // 2} for rank in {0, period // 2, period - 1}]
        if last > 0 and size % period == 0 and all(_is_moved(known, size, period, rank) for rank in sample):
            return period
    return size


def _is_moved(schedule_of: Of, size: int, period: int, rank: int) -> bool:
    """Whether a rank does the same as the one of the first period in its place."""

    def pattern(schedule: Schedule, by: int) -> list[list[tuple[object, ...]]]:
        return [
            [(type(a), _count(a.blocks), None if isinstance(a, Copy) else (a.peer - by) % size) for a in step]
            for step in schedule.steps
        ]

    place = rank % period
    return pattern(schedule_of(rank), rank - place) == pattern(schedule_of(place), 0)


@dataclass(frozen=True)
class Traffic:
    """What the representatives send and receive. All arrays but the last two have an element for each message.

    ``source`` and ``target`` are representatives. ``to`` is the rank that the message of the source really goes to.
    ``send_step`` and ``recv_step`` number the steps of all representatives, one rank after the other: the steps of a
    rank begin at ``first_step[rank]``. ``send_turn`` and ``recv_turn`` number the sends and the receives of one step.
    ``share`` is the part of the vector that a message carries, ``copied`` the part that a step copies."""

    source: Ints
    target: Ints
    to: Ints
    send_step: Ints
    recv_step: Ints
    send_turn: Ints
    recv_turn: Ints
    share: NDArray[np.float64]
    reduces: NDArray[np.bool_]
    first_step: Ints
    copied: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.source)

    def ordered(self, order: Ints) -> Traffic:
        each = {f.name: getattr(self, f.name) for f in fields(self)}
        whole = ("first_step", "copied")
        return Traffic(**{name: a if name in whole else a[order] for name, a in each.items()})


def gathered(schedule_of: Of, size: int, period: int) -> Traffic:
    """The messages of the representatives. As in MPI, the first send of a pair of ranks meets their first receive.
    Raises TooManyError for more than ``MOST`` messages, and ScheduleError if a message meets no receive."""
    sends, receives = array("q"), array("q")  # the numbers of one end after those of another
    first_step, copies = [0], array("q")
    blocks = 1
    for rank in range(period):
        schedule = schedule_of(rank)
        blocks = max(1, schedule.blocks)
        first = first_step[-1]
        for step, action in ((first + i, action) for i, actions in enumerate(schedule.steps) for action in actions):
            n = _count(action.blocks)
            if isinstance(action, Copy):
                copies.extend((step, n))
                continue
            periods, peer = divmod(action.peer, period)
            if type(action) is Send:
                sends.extend((rank, peer, periods, step, n, action.peer))
            else:
                receives.extend((peer, rank, -periods % (size // period), step, n, type(action) is RecvReduce))
        first_step.append(first + len(schedule.steps))
        if len(sends) > 6 * MOST:
            raise TooManyError(f"more than {MOST:,} messages")
    source, target, send_step, sent, really_to, sent_by, send_turn = _by_pair(sends, size, period)
    _, _, recv_step, taken, reduces, taken_by, recv_turn = _by_pair(receives, size, period)
    if not np.array_equal(sent_by, taken_by) or not np.array_equal(sent, taken):
        what = schedule_of(0)
        problem = "a message does not meet a receive of as many blocks; mpicoll verify says where"
        raise ScheduleError(f"{what.collective} {what.algorithm} of {size} ranks", None, None, None, problem)
    # Messages that are ready at the same time go in the order in which their steps name them, and then the nearest
    # first.
    named = np.lexsort((source, (really_to - source) % size, send_turn))
    copied_in, copied = np.frombuffer(copies, np.int64).reshape(-1, 2).T
    return Traffic(
        source=source, target=target, to=really_to, send_step=send_step, recv_step=recv_step, send_turn=send_turn,
        recv_turn=recv_turn, share=sent / blocks, reduces=reduces > 0,
        first_step=np.array(first_step), copied=np.bincount(copied_in, copied, first_step[-1]) / blocks,
    ).ordered(named)  # fmt: skip


def _by_pair(numbers: array[int], size: int, period: int) -> list[Ints]:
    """The ends of messages by pair of ranks, in columns: source, target, step, blocks, the rank that a send really goes
    to or whether a receive reduces, pair, and turn in the step. The ends of one pair keep their order."""
    table = np.frombuffer(numbers, np.int64).reshape(-1, 6)
    source, target, periods, step, blocks, other = table.T
    turn = np.arange(len(table)) - np.searchsorted(step, step)
    pair = (source * period + target) * (size // period) + periods
    order = np.argsort(pair, kind="stable")
    return [column[order] for column in (source, target, step, blocks, other, pair, turn)]


def _count(blocks: Blocks) -> int:
    return len(blocks[0]) if len(blocks) == 1 else sum(map(len, blocks))


class Wave(NamedTuple):
    """The ranks ``begins`` begin ``steps``, the messages ``happen``, and ``copies`` make those of steps ``copied``."""

    begins: Ints
    steps: Ints
    happen: slice
    copies: Ints
    copied: Ints


def waves(traffic: Traffic) -> tuple[Traffic, list[Wave]]:
    """The messages as they happen, and the waves. Raises ScheduleError where some steps can never end."""
    order, found, done = [], [], 0
    rank_of = np.repeat(np.arange(len(traffic.first_step) - 1), np.diff(traffic.first_step))
    for begins, happen, copied in _found_waves(traffic):
        order.append(happen)
        found.append(Wave(rank_of[begins], begins, slice(done, done + len(happen)), rank_of[copied], copied))
        done += len(happen)
    return traffic.ordered(np.concatenate(order) if order else np.zeros(0, np.int64)), found


def _found_waves(traffic: Traffic) -> Iterator[tuple[Ints, Ints, Ints]]:
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
        raise ScheduleError("the schedule", None, None, None, "waits forever; mpicoll verify says where")


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
