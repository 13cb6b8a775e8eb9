"""Measures the times of calls.

All backends take turns, a batch of calls at a time, in a changing order. What disturbs the machine then disturbs all of
them. Before each call its buffers are rewritten and the ranks meet in a barrier. A call's time is that of the slowest
rank. After each batch the last result is checked.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpicoll.bench.cases.case import Case
from mpicoll.bench.cases.check import wrong
from mpicoll.bench.cases.data import expected, words
from mpicoll.bench.cases.memory import Buffers

__all__ = ["Runner", "measure"]

ROUNDS = (5, 10)
"""The fewest and the most rounds. In a round each runner makes one batch of calls."""
CALLS = 100
"""The most calls of a batch."""
UNTIMED = 2
"""Calls at the start of a batch that do not count. After another backend's batch they find cold caches."""
TRIES = 3
"""Short batches that tell about how long a call takes, before it is measured."""

Times = NDArray[np.float64]


@dataclass
class Runner:
    """One line of the table in one placement: a call for each pair of buffers, and what was measured.

    ``times`` has the microseconds of each call on its slowest rank. ``wrong`` counts wrong elements over all ranks and
    all checks.
    """

    pairs: Sequence[Buffers]
    calls: Sequence[Callable[[], object]]
    times: list[float] = field(default_factory=list)
    wrong: int = 0

    def __post_init__(self) -> None:
        if self.case.device != "cpu":
            self.calls = [_until_done(call) for call in self.calls]
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
        return wrong(self.pairs[self._turn].result(), self._expected, words(self.case.dtype.itemsize)[1])


def _until_done(call: Callable[[], object]) -> Callable[[], object]:
    """The call, ended when the GPU has done its work. Some calls return when the work is only queued."""
    from torch.cuda import synchronize

    def run() -> None:
        call()
        synchronize()

    return run


def measure(world: MPI.Intracomm, runners: Sequence[Runner], seconds: float) -> None:
    """Run all runners in turns for about ``seconds``, or longer if even the fewest calls take longer."""
    costs = [_cost(world, runner) for runner in runners]
    rounds, calls = world.bcast(_plan(costs, seconds))
    # The order is shuffled, alike on all ranks. A runner that always came after the same other one would always find
    # in the caches what that one left there.
    order = np.random.default_rng(rounds)
    for _ in range(rounds):
        for i in order.permutation(len(runners)):
            _run(world, runners[i], calls[i])


def _run(world: MPI.Intracomm, runner: Runner, calls: int) -> None:
    if calls > 1:
        runner.batch(world, UNTIMED)
    times = runner.batch(world, calls)
    faults = np.array(runner.check(), np.int64)
    world.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    world.Allreduce(MPI.IN_PLACE, faults, MPI.SUM)
    runner.times += times.tolist()
    runner.wrong += int(faults)


def _cost(world: MPI.Intracomm, runner: Runner) -> float:
    """Seconds of one call with its rewriting and barrier, after a warm-up.

    It is the least of a few tries. If a disturbed try counted, the runner would get too few calls, with cold caches.
    """
    runner.batch(world, UNTIMED)
    tries = []
    for _ in range(TRIES):
        start = perf_counter_ns()
        runner.batch(world, UNTIMED)
        tries.append((perf_counter_ns() - start) / 1e9 / UNTIMED)
    return min(tries)


def _plan(costs: Sequence[float], seconds: float) -> tuple[int, list[int]]:
    """How many rounds fit into the time, and how many calls each runner makes in a round."""
    rounds = int(min(max(seconds / sum(costs), ROUNDS[0]), ROUNDS[1]))
    each = seconds / rounds / len(costs)
    return rounds, [int(min(max(each / cost, 1), CALLS)) for cost in costs]
