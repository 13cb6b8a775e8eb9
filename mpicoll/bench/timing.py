"""Measures the times of calls.

All backends take turns, a batch of calls at a time, in a changing order. What disturbs the machine then disturbs all of
them. Before each call its buffers are rewritten and the ranks meet in a barrier. After each batch the last result is
checked. The floor under all times is how long this machine takes to copy as many bytes, without any message."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import inf
from secrets import randbits
from time import perf_counter_ns

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.arrays.dtypes import DTYPES
from mpicoll.bench.cases import OUT, Case, expected, wrong
from mpicoll.bench.memory import Arena, Buffers
from mpicoll.bench.session import Session

ROUNDS = (6, 10)  # the fewest and the most rounds. In a round each runner makes one batch of calls.
CALLS = 100  # the most calls of a batch
UNTIMED = 2  # calls at the start of a batch that do not count. After another backend's batch they find cold caches.

Times = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass
class Runner:
    """One line of the table in one placement: a call for each pair of buffers, and what was measured.

    ``times`` has the microseconds of each call on its slowest rank, by the host's clock. ``on_device`` has those
    between CUDA events, where there are any. ``wrong`` counts wrong elements over all ranks and all checks. ``route``
    says what has carried out the last call, and ``routes`` are all that it said on any rank."""

    pairs: Sequence[Buffers]
    calls: Sequence[Callable[[], object]]
    route: Callable[[], str] = str
    times: list[float] = field(default_factory=list)
    on_device: list[float] = field(default_factory=list)
    wrong: int = 0
    routes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._between_events: Callable[[], float] | None = None
        if self.case.device != "cpu":
            self.calls, self._between_events = _with_events(self.calls)
        self._expected = expected(self.case)
        self._turn = 0

    @property
    def case(self) -> Case:
        return self.pairs[0].case

    def batch(self, world: MPI.Intracomm, calls: int) -> Times:
        """Microseconds of each of ``calls`` calls on this rank: by the host's clock, and between CUDA events."""
        times, on_device = np.empty(calls), np.empty(calls if self._between_events else 0)
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
                if self._between_events is not None:
                    on_device[i] = self._between_events()
        finally:
            if collecting:
                gc.enable()
        return times / 1e3, on_device

    def check(self) -> int:
        """How many elements of the last call's result are wrong on this rank."""
        if self._expected is None:
            return 0
        return wrong(self.pairs[self._turn].result(), self._expected)


def _with_events(calls: Sequence[Callable[[], object]]) -> tuple[list[Callable[[], object]], Callable[[], float]]:
    """The calls between two CUDA events on the current stream, each ended when the GPU has done its work: some return
    before. And a function that returns the microseconds between the events of the last one."""
    from torch import cuda

    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

    def run(call: Callable[[], object]) -> None:
        begin.record()
        call()
        end.record()
        cuda.synchronize()

    return [partial(run, call) for call in calls], lambda: float(begin.elapsed_time(end) * 1e3)


def clocks(device: str) -> dict[str, str]:
    """How each time of a record is taken on this device, by the name of its column."""
    if device == "cpu":
        return {"times_us": "host clock, from the call to its return"}
    return {
        "times_us": "host clock, from the call to the end of all work on the GPU (torch.cuda.synchronize)",
        "event_p50_us": "CUDA events on the current stream, before and after the call",
    }


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
                    runner.on_device.clear()
    every = zip(*world.allgather([runner.routes for runner in runners]), strict=True)
    for runner, routes in zip(runners, every, strict=True):
        runner.routes = list(dict.fromkeys(chain(*routes)))  # a rank of NCCL knows its own connections alone


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
    times, on_device = runner.batch(world, calls)
    took = (perf_counter_ns() - start) / 1e9 / calls
    if (route := runner.route()) not in runner.routes:
        runner.routes.append(route)
    faults = np.array(runner.check(), np.int64)
    world.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    world.Allreduce(MPI.IN_PLACE, on_device, MPI.MAX)
    world.Allreduce(MPI.IN_PLACE, faults, MPI.SUM)
    runner.times += times.tolist()
    runner.on_device += on_device.tolist()
    runner.wrong += int(faults)
    return took


def _plan(costs: Sequence[float], seconds: float) -> tuple[int, list[int]]:
    """How many rounds fit into the time, an even number, and how many calls each runner makes in a round."""
    rounds = int(min(max(seconds / sum(costs), ROUNDS[0]), ROUNDS[1])) // 2 * 2
    each = seconds / rounds / len(costs)
    return rounds, [int(min(max(each / cost, 1), CALLS)) for cost in costs]


def copy_case(size: int, device: str) -> Case:
    """A copy of ``size`` bytes: what an all-gather among one rank has to do."""
    return Case(COLLECTIVES["allgather"], size, DTYPES["uint8"], "sum", 0, 0, 1, OUT, device)


def copy_time(session: Session, arena: Arena, size: int, seconds: float) -> float:
    """The median time in microseconds in which each rank copies ``size`` bytes, all ranks at the same time. Collective.
    It is measured as the backends are, for about ``seconds``. A call's time is that of the slowest rank."""

    def copy(pair: Buffers) -> Callable[[], object]:
        x, out = pair.torch() if session.on_gpu else pair.numpy()
        return partial(out.copy_, x) if session.on_gpu else partial(np.copyto, out, x)

    pairs = arena.buffers(copy_case(size, session.device))
    runner = Runner(pairs, [*map(copy, pairs)])
    measure(session.world, [runner], seconds)
    return round(float(np.median(runner.times)), 3)
