"""The fit with real ranks. It is short, because the test is whether it runs, not how well it predicts."""

from __future__ import annotations

import json
import os
from typing import Any, cast

import numpy as np
import pytest
from mpi4py import MPI

from benchmarks import fit_machine as fit
from benchmarks.fit_machine import Probe, fitted
from mpicoll import algorithms
from mpicoll.algorithms.steps import Schedule
from mpicoll.analysis.cost.machines import Level, Machine
from mpicoll.analysis.cost.presets import from_dict

pytestmark = pytest.mark.first_mpi


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SIZES": (64, 1 << 16), "CHECKED": (64, 1 << 14), "PASSES": 1, "SECONDS": 1e-3}.items():
        monkeypatch.setattr(fit, name, value)
    monkeypatch.setattr(fit, "PREDICTED", ("bcast", "allgather"))
    monkeypatch.setattr(fit, "CACHES", ((1 << 17, 1 << 21),))
    monkeypatch.setattr(fit, "ROUNDS", 4)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_the_present_machine() -> None:
    if MPI.COMM_WORLD.size < 2:
        pytest.skip("needs 2 ranks")
    found = fit.run()
    assert (found is None) == (MPI.COMM_WORLD.rank > 0)
    if found is None:
        return
    machine, predictions = found
    size, cores = MPI.COMM_WORLD.size, os.cpu_count()
    assert machine.cores == cores
    assert cores
    assert fit.report(machine, predictions).count("\n# ") == size - 1 + (size > cores)
    assert from_dict(json.loads(json.dumps(machine.as_dict()))) == machine
    expected = [
        (ranks, collective, a.name, n)
        for ranks in range(2, MPI.COMM_WORLD.size + 1)
        for collective in ("bcast", "allgather")
        for a in algorithms.algorithms(collective)
        if not a.declines(ranks, 0)
        for n in (64, 1 << 14)
    ]
    assert [(p.ranks, p.collective, p.algorithm, p.nbytes) for p in predictions] == expected
    assert all(0 < p.measured < 10 for p in predictions)
    assert all(0 < p.predicted < 10 for p in predictions)


@pytest.mark.slow
def test_the_fit_finds_the_machine_again(monkeypatch: pytest.MonkeyPatch) -> None:
    if MPI.COMM_WORLD.rank > 0:
        pytest.skip("one rank is enough")
    level = Level(
        name="node", ranks=None, latency=4e-7, gap=(6e-11, 1e-10, 2e-10), overhead=3e-7, ports=1, overlap=False
    )
    true = Machine(
        name="m", source="a test", levels=(level,), reduction=(5e-11, 1e-10, 2e-10), copy=(3e-11, 6e-11, 9e-11),
        reduction_overhead=1e-6, copy_overhead=4e-7, step=8e-7, caches=(1 << 19, 1 << 21), eager=1024,
    )  # fmt: skip
    rng = np.random.default_rng(5)

    def answered(_: object, collective: str, sizes: list[int], steps: list[Any], blocks: int = 1) -> Probe:
        """As the machine would answer, within 2 %."""
        schedules = [Schedule(collective, "probe", blocks, tuple(each)) for each in steps]
        took = Probe(schedules, sizes, [1.0] * len(sizes)).predicted(true) * rng.uniform(0.98, 1.02, len(sizes))
        return Probe(schedules, sizes, took.tolist())

    monkeypatch.setattr(fit, "_probe", answered)
    monkeypatch.setattr(fit, "SIZES", [1 << k for k in range(6, 25, 2)])
    found = fitted([*fit._probes(cast(Any, None))], "m", "a test", 1024)
    assert (found.caches, found.levels[0].overlap, found.eager) == (true.caches, False, 1024)
    assert found.levels[0].gap == pytest.approx(level.gap, rel=0.05)
    assert found.reduction == pytest.approx(true.reduction, rel=0.1)
    assert found.copy == pytest.approx(true.copy, rel=0.1)
    assert (found.levels[0].overhead, found.step) == pytest.approx((level.overhead, true.step), rel=0.25)
