"""Finds the figures of a machine with which the cost model comes nearest to measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mpicoll.algorithms.steps import Schedule
from mpicoll.analysis.cost.machines import Level, Machine
from mpicoll.analysis.cost.simulation import Structure
from mpicoll.analysis.cost.traffic import Symmetry

Times = NDArray[np.float64]

ROUNDS = 12
"""Rounds of the fit. The model is linear in its figures, except that they decide what waits for what. This settles in a
few rounds."""
CACHES = tuple((1 << small, 1 << large) for small in (17, 19) for large in (21, 23))
"""Bytes of the longest vectors that stay in two caches. Each pair is tried, and the one that fits best is taken."""
FEW_PERCENT = 0.05
"""Relative errors below this one have the same weight. Larger ones have less, so that a disturbed measurement has
little influence."""


@dataclass(frozen=True)
class Probe:
    """The schedules of all ranks, and the measured seconds for vectors of ``nbytes``."""

    schedules: Sequence[Schedule]
    nbytes: Sequence[int]
    seconds: Sequence[float]

    @cached_property
    def _structure(self) -> Structure:
        size = len(self.schedules)
        return Structure(self.schedules.__getitem__, Symmetry(size, size))

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
