"""Where time is taken, and nowhere else.

All backends take turns, a batch of calls at a time, in an order that changes, so that what disturbs the machine
disturbs all of them. Before each call its buffers are rewritten and the ranks meet in a barrier; a call's time is
that of the slowest rank. After each batch the last result is checked.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpicoll.bench.check import wrong
from mpicoll.bench.data import expected, words
from mpicoll.bench.memory import Slot

__all__ = ["Runner", "measure"]

ROUNDS = (5, 10)
"""Batches of each runner: at least, where calls are long, and at most."""
CALLS = 100
"""Calls of a batch, at most."""
UNTIMED = 2
"""Calls before a batch that count for nothing: the first ones after another backend's batch find cold caches."""

TRIES = 3
"""Batches from which a call's cost is told before it is measured."""

Times = NDArray[np.float64]


@dataclass
class Runner:
    """One line of the table in one placement: a call bound to each slot, and what was measured.

    ``times`` are microseconds, a call each, of the slowest rank. ``wrong`` counts wrong elements over all ranks and
    all checks.
    """

    slots: Sequence[Slot]
    calls: Sequence[Callable[[], object]]
    times: list[float] = field(default_factory=list)
    wrong: int = 0

    def __post_init__(self) -> None:
        if self.slots[0].case.device != "cpu":
            self.calls = [_to_its_end(call) for call in self.calls]
        self._expected = expected(self.slots[0].case)
        self._turn = 0

    def batch(self, world: MPI.Intracomm, calls: int) -> Times:
        """Microseconds of each of ``calls`` calls on this rank."""
        times = np.empty(calls)
        barrier, now = world.Barrier, perf_counter_ns
        collecting = gc.isenabled()
        gc.disable()
        try:
            for i in range(calls):
                self._turn = (self._turn + 1) % len(self.slots)
                self.slots[self._turn].rewrite()
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
        """Wrong elements of the last call's result on this rank."""
        if self._expected is None:
            return 0
        slot = self.slots[self._turn]
        return wrong(slot.result(), self._expected, words(slot.case.dtype.itemsize)[1])


def _to_its_end(call: Callable[[], object]) -> Callable[[], object]:
    """The call until the GPU has done its work: some return when it is queued."""
    from torch.cuda import synchronize

    def run() -> None:
        call()
        synchronize()

    return run


def measure(world: MPI.Intracomm, runners: Sequence[Runner], seconds: float) -> None:
    """Run all runners in turns for about ``seconds`` (more where even the fewest calls take longer)."""
    costs = [_cost(world, runner) for runner in runners]
    rounds, calls = world.bcast(_plan(costs, seconds))
    # Shuffled rather than rotated, alike on all ranks: a runner that always came after the same one would find that
    # one's leavings in the caches each time.
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
    """Seconds of one call with all that belongs to it, after a warm-up: the least of a few tries, because one that
    something disturbed would leave the runner with too few calls, all of them cold."""
    runner.batch(world, UNTIMED)
    tries = []
    for _ in range(TRIES):
        start = perf_counter_ns()
        runner.batch(world, UNTIMED)
        tries.append((perf_counter_ns() - start) / 1e9 / UNTIMED)
    return min(tries)


def _plan(costs: Sequence[float], seconds: float) -> tuple[int, list[int]]:
    """(rounds, calls of each runner in a round) that fit into the time."""
    rounds = int(min(max(seconds / sum(costs), ROUNDS[0]), ROUNDS[1]))
    each = seconds / rounds / len(costs)
    return rounds, [int(min(max(each / cost, 1), CALLS)) for cost in costs]
