"""Measures the times of calls.

All backends take turns, a batch of calls at a time, in a changing order. What disturbs the machine then disturbs all of
them. Before each call its buffers are rewritten and the ranks meet in a barrier. After each batch the last result is
checked."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from secrets import randbits
from time import perf_counter_ns

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpicoll.bench.cases import Case, expected, wrong
from mpicoll.bench.memory import Buffers

ROUNDS = (6, 10)  # the fewest and the most rounds. In a round each runner makes one batch of calls.
CALLS = 100  # the most calls of a batch
UNTIMED = 2  # calls at the start of a batch that do not count. After another backend's batch they find cold caches.

Times = NDArray[np.float64]


@dataclass
class Runner:
    """One line of the table in one placement: a call for each pair of buffers, and what was measured.

    ``times`` has the microseconds of each call on its slowest rank: on a GPU until that has done its work. ``wrong``
    counts wrong elements over all ranks and all checks. ``route`` says what has carried out the last call, and
    ``routes`` are all that it said."""

    pairs: Sequence[Buffers]
    calls: Sequence[Callable[[], object]]
    route: Callable[[], str] = str
    times: list[float] = field(default_factory=list)
    wrong: int = 0
    routes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.case.device != "cpu":
            self.calls = [partial(_synchronized, call) for call in self.calls]
        self._expected = expected(self.case)
        self._turn = 0

    @property
    def case(self) -> Case:
        return self.pairs[0].case

    def batch(self, world: MPI.Intracomm, calls: int) -> Times:
        """Microseconds of each of ``calls`` calls on this rank."""
        times = np.empty(calls)
        barrier, now = world.Barrier, perf_counter_ns
        collecting = gc.isenabled()
        gc.disable()
        try:
            for i in range(calls):
                self._turn = (self._turn + 1) % len(self.pairs)
                self.pairs[self._turn].rewrite()
                call = self.calls[self._turn]
                barrier()
                start = now()
                call()
                times[i] = now() - start
        finally:
            if collecting:
                gc.enable()
        return times / 1e3

    def check(self) -> int:
        """How many elements of the last call's result are wrong on this rank."""
        if self._expected is None:
            return 0
        return wrong(self.pairs[self._turn].result(), self._expected)


def _synchronized(call: Callable[[], object]) -> None:
    """Make the call, and wait until the GPU has done its work: some calls return before."""
    from torch import cuda

    call()
    cuda.synchronize()


def measure(world: MPI.Intracomm, runners: Sequence[Runner], seconds: float) -> None:
    """Run all runners in turns for about ``seconds``, or longer if even the fewest calls take longer. How many calls a
    batch has follows from the fastest batch so far. If it followed from one try, a try that was disturbed would leave
    the runner with few calls, each with cold caches, and those would seem to take long."""
    for runner in runners:
        runner.batch(world, 1)  # makes what later calls find
    costs, calls = [inf] * len(runners), [1] * len(runners)
    for made, order in enumerate(_orders(len(runners), world.bcast(randbits(64))), 1):
        for i in order:
            costs[i] = min(costs[i], _run(world, runners[i], calls[i]))
        if made % 2:
            continue
        rounds, calls = world.bcast(_plan(costs, seconds))
        if made >= rounds:
            break
        if made == 2:
            for runner, n in zip(runners, calls, strict=True):
                if n > 1:  # then no call so far counts: single calls find cold caches
                    runner.times.clear()


def _orders(runners: int, seed: int) -> Iterator[Sequence[int]]:
    """In which order the runners take their turns in each round, without end: shuffled, and then the other way round.
    So each comes before each other one as often as after it, and does not always find what that one left in the caches.
    """
    shuffled = np.random.default_rng(seed)
    while True:
        order = shuffled.permutation(runners).tolist()
        yield order
        yield order[::-1]


def _run(world: MPI.Intracomm, runner: Runner, calls: int) -> float:
    """One turn of a runner. Returns the seconds of a call on this rank, with its rewriting and barrier."""
    if calls > 1:
        runner.batch(world, UNTIMED)
    start = perf_counter_ns()
    times = runner.batch(world, calls)
    took = (perf_counter_ns() - start) / 1e9 / calls
    if (route := runner.route()) not in runner.routes:
        runner.routes.append(route)
    faults = np.array(runner.check(), np.int64)
    world.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    world.Allreduce(MPI.IN_PLACE, faults, MPI.SUM)
    runner.times += times.tolist()
    runner.wrong += int(faults)
    return took


def _plan(costs: Sequence[float], seconds: float) -> tuple[int, list[int]]:
    """How many rounds fit into the time, an even number, and how many calls each runner makes in a round."""
    rounds = int(min(max(seconds / sum(costs), ROUNDS[0]), ROUNDS[1])) // 2 * 2
    each = seconds / rounds / len(costs)
    return rounds, [int(min(max(each / cost, 1), CALLS)) for cost in costs]
