"""How long a schedule takes on a machine: an event-driven simulation in the LogGOPS model, for many sizes at once.

docs/explanation/cost.md says what happens to a message. All messages that can happen at once are a wave. Within a wave,
messages get a port in the order in which they are ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mpicoll import algorithms
from mpicoll.analysis.cost.machines import Machine
from mpicoll.analysis.cost.traffic import Of, TooManyError, Traffic, Wave, gathered, shortest_period, waves

Ints = NDArray[np.int64]
Times = NDArray[np.float64]  # seconds, in a row for each rank, message or port, and a column for each size

PIECE = 1 << 20  # bytes of the pieces of a long message, as in fabrics/transports/mpi_requests.py


@dataclass(frozen=True)
class Costs:
    """The ``seconds`` for each size, NaN where there are none. Then ``note`` says why."""

    seconds: Times
    note: str = ""


def costs(collective: str, algorithm: str, size: int, machine: Machine, nbytes: Sequence[int]) -> Costs:
    """The same as ``costs_of`` for an algorithm that is registered under this name."""
    [chosen] = (each for each in algorithms.algorithms(collective) if each.name == algorithm)
    return costs_of(chosen, size, machine, nbytes)


def costs_of(chosen: algorithms.Algorithm, size: int, machine: Machine, nbytes: Sequence[int], root: int = 0) -> Costs:
    """The times of an algorithm among ``size`` ranks for vectors of ``nbytes``, which are cut as a call would cut them.
    Raises ArgumentError if the algorithm does not serve so many ranks, or if the machine does not hold them."""
    nodes = machine.nodes(size) if chosen.by_node else None
    alike: dict[int, list[int]] = {}  # by segments: a pipelined algorithm cuts a long vector into more
    for i, n in enumerate(nbytes):
        alike.setdefault(algorithms.segments_of(chosen, size, root, n), []).append(i)
    found, note = np.full(len(nbytes), np.nan), ""
    for segments, members in alike.items():
        each = np.array([nbytes[i] for i in members], np.float64)
        schedule_of = partial(chosen.schedule, size=size, root=root, segments=segments, nodes=nodes)
        try:
            found[members] = simulated(schedule_of, size, machine, each)
        except TooManyError as e:
            note = str(e)
    return Costs(found, note)


def simulated(schedule_of: Of, size: int, machine: Machine, nbytes: Times) -> Times:
    """Seconds until the last of ``size`` ranks is done, for vectors of ``nbytes`` (1-D) bytes. Only one of several
    ranks is simulated if they do the same at the same place of the machine. A sample of the schedules shows whether
    they do. Raises TooManyError for more messages than can be kept."""
    alike = machine.placement == "block" and machine.levels[-1].network is None
    period = shortest_period(schedule_of, size, machine.period if alike else size)
    return Structure(schedule_of, size, period).seconds(machine, nbytes)


class Structure:
    """What does not depend on the machine and the sizes: the messages of the first ``period`` ranks, or of all."""

    def __init__(self, schedule_of: Of, size: int, period: int | None = None) -> None:
        self._size, self._period = size, period or size
        self._traffic, self._waves = waves(gathered(schedule_of, size, self._period))

    def seconds(self, machine: Machine, nbytes: Times) -> Times:
        """Seconds until the last rank is done, for each size."""
        running = _Running(machine.crowded(self._size), self._size, self._period, self._traffic, nbytes)
        for wave in self._waves:
            running.advance(wave)
        found: Times = running.end.max(axis=0)
        return found


class _Running:
    """The state of all ranks between two waves. The figures of the messages are column vectors, to meet the sizes."""

    def __init__(self, machine: Machine, size: int, period: int, traffic: Traffic, nbytes: Times) -> None:
        self.machine, self.traffic, self.nbytes = machine, traffic, nbytes
        positions = machine.positions(size)
        source, target = positions[traffic.source], positions[traffic.target]
        level = machine.level(source, positions[traffic.to])
        self.path = _paths(machine, level, (source, traffic.send_turn), (target, traffic.recv_turn))
        figures = np.array([(each.latency, each.overhead, each.overlap) for each in machine.levels])
        self.latency, self.overhead, self.overlap = (column[level][:, None] for column in figures.T)
        rates = [*(each.gap for each in machine.levels), machine.reduction, machine.copy]
        *gaps, self.reduction, self.copy = np.array([[machine.rate(r, n) for n in nbytes] for r in rates])
        self.gap, self.level = np.array(gaps), level
        hops = np.array([0.0 if each.network is None else each.network.hop for each in machine.levels])
        self.latency = self.latency + hops[level][:, None] * (self.path[:, 1:-1] >= 0).sum(axis=1, keepdims=True)
        # The sends of one step follow each other. Each waits for its own overhead, and for those of the sends before
        # it.
        order = np.lexsort((traffic.send_turn, traffic.send_step))
        spent = np.cumsum(self.overhead[order, 0])
        before = np.searchsorted(traffic.send_step[order], traffic.send_step[order])
        self.posted = np.empty_like(self.overhead)
        self.posted[order, 0] = spent - np.concatenate([[0.0], spent])[before]
        steps = int(traffic.first_step[-1])
        self.sending = np.bincount(traffic.send_step[order], self.overhead[order, 0], steps)[:, None]
        talks = np.bincount(traffic.send_step, minlength=steps) + np.bincount(traffic.recv_step, minlength=steps)
        self.step = np.where(talks > 0, machine.step, 0.0)[:, None]
        shape = (period, len(nbytes))
        self.begin, self.end, self.busy = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.free = np.zeros((self.path.max(initial=0) + 1, len(nbytes)))

    def advance(self, wave: Wave) -> None:
        """Begin the steps of the wave, carry out its messages, and make the copies of the steps that end."""
        begun = self.end[wave.begins] + self.step[wave.steps]
        self.begin[wave.begins] = begun
        self.end[wave.begins] = self.busy[wave.begins] = begun + self.sending[wave.steps]
        if wave.happen.start < wave.happen.stop:
            self.execute(wave.happen)
        copied = self.traffic.copied[wave.copied, None]
        self.end[wave.copies] += copied * self.nbytes * self.copy + self.machine.copy_overhead

    def execute(self, at: slice) -> None:
        m, source, target, path = self.traffic, self.traffic.source[at], self.traffic.target[at], self.path[at]
        nbytes, reduces = m.share[at, None] * self.nbytes, m.reduces[at, None]
        latency, wire = self.latency[at], nbytes * self.gap[self.level[at]]
        ready = self.begin[source] + self.posted[at]
        asks = nbytes > (np.inf if self.machine.eager is None else self.machine.eager)
        if asks.any():
            ready = np.where(asks, np.maximum(ready + latency, self.begin[target]) + latency, ready)
        leaves = served(self.free, path[:, 0], ready, wire)
        latest(self.end, source, leaves + wire)
        arrives = leaves + latency
        for server in path.T[1:]:
            there = server >= 0
            arrives[there] = served(self.free, server[there], arrives[there], wire[there])
        work = np.where(reduces, nbytes * self.reduction, 0.0)
        share = np.minimum(1.0, PIECE / np.maximum(nbytes, 1.0))  # what a piece is of its message
        usable = np.where(reduces * self.overlap[at] > 0, wire * share, wire)  # so long after the first byte
        once = self.overhead[at] + reduces * self.machine.reduction_overhead
        taken = served(self.busy, target, arrives + usable, once + work)
        until = np.maximum(taken + work, arrives + wire + work * share) + once
        latest(self.end, target, until)


def _paths(machine: Machine, level: Ints, leaving: tuple[Ints, Ints], arriving: tuple[Ints, Ints]) -> Ints:
    """The ports and links that each message takes, from the positions and turns of its ends: of shape (messages,
    columns), with -1 where a path has no link. They are numbered without gaps."""
    found, widest = [], 2
    for i in range(len(machine.levels)):
        here = level == i
        first, last = (machine.port(i, at[here], turn[here]) for at, turn in (leaving, arriving))
        links = machine.links(i, leaving[0][here], arriving[0][here], last)
        path = np.column_stack([first, links, last])
        kinds = np.array([0, *[1] * links.shape[1], 2])
        found.append((here, np.where(path < 0, -1, (path * len(machine.levels) + i) * 3 + kinds)))
        widest = max(widest, len(kinds))
    keys = np.full((len(level), widest), -1)
    for here, path in found:
        keys[here, : path.shape[1] - 1], keys[here, -1] = path[:, :-1], path[:, -1]
    number = np.unique(keys, return_inverse=True)[1].reshape(keys.shape)
    return np.asfortranarray(number - (keys.min(initial=0) < 0))


def served(free: Times, server: Ints, ready: Times, busy: Times) -> Times:
    """When each job starts. A server does its jobs one after another, in the order in which they are ready. ``free`` is
    the time from which each server is free, and is updated."""
    order = np.argsort(server, kind="stable")
    first = _changes(server[order])
    if len(first) >= len(server):  # no two jobs have the same server
        start = np.maximum(ready, free[server])
        free[server] = start + busy
        return start
    queues, length = server[order[first]], np.diff(first, append=len(order))
    start = np.empty_like(ready)
    size_class = np.frexp(length)[1]
    for each in np.flatnonzero(np.bincount(size_class)):  # queues of about the same length together
        chosen = size_class == each
        _serve(free, queues[chosen], order, first[chosen], length[chosen], ready, busy, start)
    return start


def _serve(
    free: Times, queues: Ints, order: Ints, first: Ints, length: Ints, ready: Times, busy: Times, start: Times
) -> None:
    """Serve the queues, and write when their jobs start. Each queue is a part of ``order`` that begins at ``first``."""
    longest = int(length.max())
    turn = np.minimum(np.arange(longest), length[:, None] - 1)
    job = order[first[:, None] + turn]  # (queue, turn); the last job of a short queue fills its row
    there = np.arange(longest) < length[:, None]
    when = np.where(there[:, :, None], ready[job], np.inf)
    sequence = np.argsort(when, axis=1, kind="stable")
    job = np.take_along_axis(job[:, :, None], sequence, axis=1)
    column = np.arange(ready.shape[1])
    now = free[queues]
    for k in range(longest):
        mine = job[:, k]
        begins = np.maximum(ready[mine, column], now)
        valid = there[:, k]
        start[mine[valid], column] = begins[valid]
        now = np.where(valid[:, None], begins + busy[mine, column], now)
    free[queues] = now


def latest(until: Times, at: Ints, when: Times) -> None:
    """Make ``until[at]`` at least ``when``. ``at`` may name a row several times."""
    order = np.argsort(at, kind="stable")
    first = _changes(at[order])
    rows, when = at[order[first]], np.maximum.reduceat(when[order], first, axis=0)
    until[rows] = np.maximum(until[rows], when)


def _changes(numbers: Ints) -> Ints:
    """The places in ascending numbers at which another number begins."""
    return np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
