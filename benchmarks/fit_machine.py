"""Measures the figures of a machine for ``mpicoll simulate``, and how well the cost model then predicts.

    mpicoll run -n 2 benchmarks/fit_machine.py --json here.json > benchmarks/records/fit-2ranks-openmpi.txt
    mpicoll simulate allreduce -n 2 --machine here.json

Everything runs through ``fabrics/routes/scheduled``. The times are therefore those of a schedule on this machine, with
the time that Python takes. docs/explanation/cost.md says what is measured, and how the figures are found.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpicoll import algorithms
from mpicoll.algorithms import schedule
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, Copy, Recv, RecvReduce, Schedule, Send, Step, one
from mpicoll.analysis.cost.machines import Level, Machine
from mpicoll.analysis.cost.simulation import Structure, costs
from mpicoll.bench.session import environment, open_session
from mpicoll.calls.call import checked
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.fabrics.routes import scheduled
from mpicoll.fabrics.transports.mpi_requests import MPIRequests, longest_piece
from mpicoll.launch.launch_env import check_not_alone
from mpicoll.units import duration, size_text

Times = NDArray[np.float64]
ROUNDS = 12
"""Rounds of the fit. The model is linear in its figures, except that they decide what waits for what. This settles in a
few rounds."""
CACHES = tuple((1 << small, 1 << large) for small in (17, 19) for large in (21, 23))
"""Bytes of the longest vectors that stay in two caches. Each pair is tried, and the one that fits best is taken."""
FEW_PERCENT = 0.05
"""Relative errors below this one have the same weight. Larger ones have less, so that a disturbed measurement has
little influence."""


Result = TypeVar("Result")

SIZES = tuple(1 << k for k in range(6, 25, 2))
"""Bytes of the vectors that probes exchange."""
CHECKED = (1 << 10, 1 << 14, 1 << 18, 1 << 22)
"""Bytes of the vectors that predictions are checked on."""
PREDICTED = ("bcast", "reduce", "allreduce", "allgather", "reduce_scatter", "alltoall")
PASSES = 3
"""Passes over all measurements, far apart in time. The least time counts, because disturbances only add to it."""
BATCHES = 3
SECONDS = 0.02
"""Batches of one measurement in one pass, and about how many seconds they take together."""
ASLEEP = 3e-3
"""Seconds that a receiver waits before it asks for an eager message."""


def main() -> None:
    """Measure. Rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the machine as --machine of mpicoll simulate reads it")
    file = parser.parse_args().json
    found = run()
    if found is not None:
        machine, predicted = found
        print(report(machine, predicted))
        if file is not None:
            file.write_text(json.dumps(machine.as_dict(), indent=1) + "\n")


def run() -> tuple[Machine, list[Prediction]] | None:
    """The machine's parameters and how well they predict, on rank 0 of all ranks. None on the others. Collective."""
    world = MPI.COMM_WORLD
    check_not_alone(world.size)
    about = environment(open_session(world, "cpu"))
    source = f"fit_machine.py on {world.size} ranks: {about['cpu']}, {about['cores']} cores, {about['mpi']}"
    cores = about["cores"] if about["nodes"] == 1 else None
    machine = measured_machine(world, "measured", source, cores)
    predicted = predictions(world, machine)
    return None if machine is None or world.rank else (machine, predicted)


def report(machine: Machine, predictions: Sequence[Prediction]) -> str:
    """The machine, each prediction beside what was measured, and the errors for each number of ranks."""
    row = "{:14} {:20} {:>5} {:>6} {:>10} {:>10} {:>6}".format
    lines = [f"# {machine.name}: {machine.source}", json.dumps(machine.as_dict(), indent=1)]
    lines.append(row("collective", "algorithm", "ranks", "size", "measured", "predicted", "error"))
    for p in predictions:
        times = duration(p.measured), duration(p.predicted)
        lines.append(row(p.collective, p.algorithm, p.ranks, size_text(p.nbytes), *times, f"{p.error:.0%}"))
    for number in sorted({p.ranks for p in predictions}):
        mine = [p for p in predictions if p.ranks == number]
        median, most = errors(mine)
        error = f"error: median {median:.0%}, 90th percentile {most:.0%}"
        lines.append(f"# {number} ranks: {len(mine)} predictions; {error}")
    if machine.cores is not None and predictions and predictions[-1].ranks > machine.cores:
        lines.append(f"# more ranks than the {machine.cores} cores here: in the model they take turns without any loss")
    return "\n".join(lines)


def measured_machine(world: MPI.Intracomm, name: str, source: str, cores: int | None = None) -> Machine | None:
    """The machine of so many cores, measured between ranks 0 and 1. None on the other ranks. Collective."""

    def work(pair: MPI.Intracomm) -> Machine:
        return fitted(_least([list(_probes(pair)) for _ in range(PASSES)]), name, source, _eager(pair), cores=cores)

    return _among(world, 2, work)


def predictions(world: MPI.Intracomm, machine: Machine | None) -> list[Prediction]:
    """Measured and predicted times among 2 ranks, 3 ranks and so on up to all, on rank 0. Collective."""
    cases = [
        (ranks, collective, each.name)
        for ranks in range(2, world.size + 1)
        for collective in PREDICTED
        for each in algorithms.algorithms(collective)
        if not each.declines(ranks, 0)
    ]
    least = np.full((len(cases), len(CHECKED)), np.inf)
    for _ in range(PASSES):
        for i, (ranks, collective, name) in enumerate(cases):
            seconds = _among(world, ranks, partial(_times, collective=collective, algorithm=name))
            if seconds is not None:
                least[i] = np.minimum(least[i], seconds)
    if world.rank:
        return []
    assert machine is not None
    return [
        Prediction(collective, name, ranks, n, float(took), float(says))
        for (ranks, collective, name), row in zip(cases, least, strict=True)
        for n, took, says in zip(CHECKED, row, costs(collective, name, ranks, machine, CHECKED).seconds, strict=True)
    ]


def _among(world: MPI.Intracomm, ranks: int, work: Callable[[MPI.Intracomm], Result]) -> Result | None:
    """The result of ``work`` on the first ranks. The others sleep meanwhile, because a rank that polls needs a core."""
    chosen = world.rank < ranks
    comm = world.Create(world.group.Incl(range(ranks)))
    found = None
    if chosen:
        assert isinstance(comm, MPI.Intracomm)
        found = work(comm)
        comm.Free()
    over = world.Ibarrier()
    while not over.Test():
        time.sleep(1e-3)
    return found


# -- measuring ------------------------------------------------------------------------------------------------------


def _bound(comm: MPI.Intracomm, collective: str, steps: Schedule, nbytes: int) -> _Bound:
    """This rank's part in a schedule, as a plan on float32 vectors of so many bytes."""
    table = COLLECTIVES[collective]
    block = max(1, nbytes // 4 // comm.size) if table.by_rank else nbytes // 4
    lengths = block * table.given_blocks(comm.size), block * table.gotten_blocks(comm.size)
    x, out = (np.full(n, 0, np.float32) for n in lengths)  # written, so it has its pages
    given = None if collective == "bcast" else out
    call = checked(collective, comm.rank, comm.size, x, given, "sum", 0)
    make = partial(MPIRequests, comm, call.reduction)
    plan = scheduled.bind(comm.rank, comm.size, call, steps, Workspace(), make, longest_piece())
    return _Bound(sequence(*plan), x, out)


class _Bound(NamedTuple):
    """A plan and the arrays that it uses. A plan itself holds addresses only."""

    plan: Plan
    given: NDArray[np.float32]
    taken: NDArray[np.float32]


def _seconds(comm: MPI.Intracomm, bound: _Bound) -> float:
    """The time of a call on its slowest rank.

    It is the least of the batches' medians, because disturbances only add to a time.
    """
    trial = min(_batch(comm, bound, 3) for _ in range(3))
    calls = comm.bcast(int(min(max(SECONDS / BATCHES / max(trial, 1e-7), 3), 200)))
    times = np.array([_batch(comm, bound, calls) for _ in range(BATCHES)])
    comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return float(times.min())


def _batch(comm: MPI.Intracomm, bound: _Bound, calls: int) -> float:
    """The median time of so many calls, in seconds.

    Before each call every rank writes its input, so that it lies in this core's caches as results of a program do. Then
    the ranks meet in a barrier.
    """
    now, barrier, plan = time.perf_counter, comm.Barrier, bound.plan
    took = []
    for _ in range(calls):
        bound.given[...] = 0
        barrier()
        start = now()
        plan()
        took.append(now() - start)
    return float(np.median(took))


def _times(comm: MPI.Intracomm, collective: str, algorithm: str) -> list[float]:
    """Seconds that an algorithm takes, for each size that predictions are checked on."""
    found = []
    for n in CHECKED:
        steps = schedule(collective, algorithm, comm.rank, comm.size, 0, n)
        found.append(_seconds(comm, _bound(comm, collective, steps, n)))
    return found


# -- probes: schedules of two ranks; each tells another parameter -----------------------------------------------------


def _probes(pair: MPI.Intracomm) -> Iterator[Probe]:
    short = (256,)
    yield from _pairs(pair, SIZES)
    for n in (4, 16):  # many messages in one step, and in as many steps
        sends, receives = [Send(1, one(b), INPUT) for b in range(n)], [Recv(0, one(b), OUTPUT) for b in range(n)]
        yield _probe(pair, "alltoall", short, _there_and_back([tuple(sends)], [tuple(receives)]), n)
        yield _probe(pair, "alltoall", short, _there_and_back([(a,) for a in sends], [(a,) for a in receives]), n)


def _pairs(pair: MPI.Intracomm, sizes: Sequence[int]) -> Iterator[Probe]:
    """A message there and back, an exchange, an exchange that reduces, and a copy."""
    to, back = [(Send(1, one(0), INPUT),)], [(Recv(0, one(0), OUTPUT),)]
    yield _probe(pair, "alltoall", sizes, _there_and_back(to, back))
    exchanged = [(Send(1 - r, one(0), INPUT), Recv(1 - r, one(0), OUTPUT)) for r in range(2)]
    yield _probe(pair, "alltoall", sizes, [[step] for step in exchanged])
    reduced = [(Send(1 - r, one(0), INPUT), RecvReduce(1 - r, one(0), INPUT, OUTPUT, r == 0)) for r in range(2)]
    yield _probe(pair, "allreduce", sizes, [[step] for step in reduced])
    yield _probe(pair, "alltoall", sizes, [[(Copy(one(0), INPUT, OUTPUT),)]] * 2)


def _there_and_back(first: Sequence[Step], second: Sequence[Step]) -> list[list[Step]]:
    """The steps of both ranks, with a message back at the end."""
    return [[*first, (Recv(1, one(0), OUTPUT),)], [*second, (Send(0, one(0), INPUT),)]]


def _least(passes: Sequence[Sequence[Probe]]) -> list[Probe]:
    return [replace(each[0], seconds=np.min([p.seconds for p in each], axis=0)) for each in zip(*passes, strict=True)]


def _probe(
    pair: MPI.Intracomm, collective: str, sizes: Sequence[int], steps: Sequence[Sequence[Step]], blocks: int = 1
) -> Probe:
    schedules = [Schedule(collective, "probe", blocks, tuple(each)) for each in steps]
    seconds = [_seconds(pair, _bound(pair, collective, schedules[pair.rank], n)) for n in sizes]
    return Probe(schedules, sizes, seconds)


def _eager(pair: MPI.Intracomm) -> int:
    """The longest message that leaves before its receiver asks for it. Powers of two up to 1 MiB are tried."""
    longest = 0
    for n in (1 << k for k in range(6, 21)):
        message, waited = np.zeros(n, np.uint8), []
        for _ in range(3):
            pair.Barrier()
            if pair.rank == 0:
                start = time.perf_counter()
                pair.Send(message, 1)
                waited.append(time.perf_counter() - start)
            else:
                time.sleep(ASLEEP)
                pair.Recv(message, 0)
        if not pair.bcast(pair.rank == 0 and min(waited) < ASLEEP / 2):
            break
        longest = n
    return longest


# -- the figures with which the model comes nearest to the measured times ---------------------------------------------


@dataclass(frozen=True)
class Probe:
    """The schedules of all ranks, and the measured seconds for vectors of ``nbytes``."""

    schedules: Sequence[Schedule]
    nbytes: Sequence[int]
    seconds: Sequence[float]

    @cached_property
    def _structure(self) -> Structure:
        return Structure(self.schedules.__getitem__, len(self.schedules))

    def predicted(self, machine: Machine) -> Times:
        return self._structure.seconds(machine, np.array(self.nbytes, np.float64))


@dataclass(frozen=True)
class Prediction:
    """The measured and the predicted time of an algorithm, in seconds."""

    collective: str
    algorithm: str
    ranks: int
    nbytes: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return abs(self.predicted - self.measured) / self.measured


def errors(predictions: Sequence[Prediction]) -> tuple[float, float]:
    found = np.percentile([p.error for p in predictions], [50, 90])
    return float(found[0]), float(found[1])


def fitted(
    probes: Sequence[Probe],
    name: str,
    source: str,
    eager: int,
    sizes: Sequence[tuple[int, ...]] = CACHES,
    overlaps: Sequence[bool] = (True, False),
    cores: int | None = None,
) -> Machine:
    """The machine of one level and so many cores that fits the probes best, of these sizes of caches, and with or
    without overlap."""
    level = Level(name="node", ranks=None, latency=0.0, gap=0.0, overhead=0.0, ports=1)
    start = Machine(name=name, source=source, levels=(level,), reduction=0.0, copy=0.0, eager=eager, cores=cores)
    fits = []
    for caches in sizes:
        for overlap in overlaps:
            like = replace(start, caches=caches, levels=(replace(level, overlap=overlap),))
            fits.append(_fitted(probes, like))
    return min(fits, key=lambda machine: float(np.mean(np.abs(_predicted(probes, machine) / _measured(probes) - 1))))


def _with(machine: Machine, figures: Times) -> Machine:
    """The machine with these figures instead of its own."""
    latency, overhead, reducing, copying, step, *rates = map(float, figures)
    gap, reduction, copy = (tuple(rates[i : i + 3]) for i in (0, 3, 6))
    level = replace(machine.levels[0], latency=latency, overhead=overhead, gap=gap)
    return replace(
        machine, levels=(level,), reduction=reduction, copy=copy,
        reduction_overhead=reducing, copy_overhead=copying, step=step,
    )  # fmt: skip


def _fitted(probes: Sequence[Probe], machine: Machine) -> Machine:
    """Least squares of the relative errors, repeated from the result of the round before."""
    at, step = np.repeat([1e-7, 1e-10], [5, 9]), np.repeat([1e-9, 1e-13], [5, 9])
    measured = _measured(probes)
    for _ in range(ROUNDS):
        here = _predicted(probes, _with(machine, at)) / measured
        moved = [_predicted(probes, _with(machine, at + by)) / measured for by in np.diag(step)]
        table = ((np.array(moved) - here) / step[:, None]).T
        weight = 1 / np.sqrt(np.maximum(np.abs(here - 1), FEW_PERCENT))
        at = (at + _least_squares(table * weight[:, None], (1 - here + table @ at) * weight)) / 2
    return _with(machine, at)


def _least_squares(table: Times, aim: Times) -> Times:
    """Least squares with figures of at least 0. A figure that would be negative is 0."""
    found, scale = np.zeros(table.shape[1]), np.maximum(np.linalg.norm(table, axis=0), 1e-300)
    free = np.ones(len(found), bool)
    while free.any():
        solved = np.linalg.lstsq(table[:, free] / scale[free], aim, rcond=None)[0]
        if (solved >= 0).all():
            found[free] = solved / scale[free]
            break
        free[np.flatnonzero(free)[solved.argmin()]] = False
    return found


def _measured(probes: Sequence[Probe]) -> Times:
    return np.concatenate([p.seconds for p in probes])


def _predicted(probes: Sequence[Probe], machine: Machine) -> Times:
    return np.concatenate([p.predicted(machine) for p in probes])


if __name__ == "__main__":
    main()
