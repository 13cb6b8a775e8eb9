"""The fit with real ranks. It is short, because the test is whether it runs, not how well it predicts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from benchmarks import fit_machine as fit
from benchmarks.fit_machine import Prediction, Probe, errors, fitted
from mpicoll import algorithms
from mpicoll.algorithms.steps import INPUT, OUTPUT, Copy, Recv, RecvReduce, Schedule, Send, one
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


def probes(machine: Machine, rng: np.random.Generator) -> list[Probe]:
    """As the machine would answer, within 2 %."""
    sizes = [1 << k for k in range(6, 25, 2)]

    def probe(nbytes: list[int], steps: list[list[tuple[Any, ...]]], blocks: int = 1) -> Probe:
        empty = Probe([Schedule("alltoall", "probe", blocks, tuple(s)) for s in steps], nbytes, [1.0] * len(nbytes))
        took = empty.predicted(machine) * rng.uniform(0.98, 1.02, len(nbytes))
        return replace(empty, seconds=took.tolist())

    def both(*actions: Callable[[int], Any]) -> list[list[tuple[Any, ...]]]:
        return [[tuple(action(1 - r) for action in actions)] for r in range(2)]

    def back(sends: list[tuple[Any, ...]], receives: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
        return [[*sends, (Recv(1, one(0), OUTPUT),)], [*receives, (Send(0, one(0), INPUT),)]]

    sends, receives = [Send(1, one(b), INPUT) for b in range(16)], [Recv(0, one(b), OUTPUT) for b in range(16)]
    return [
        probe(sizes, back([(Send(1, one(0), INPUT),)], [(Recv(0, one(0), OUTPUT),)])),
        probe([256], back([tuple(sends)], [tuple(receives)]), 16),
        probe([256], back([(a,) for a in sends], [(a,) for a in receives]), 16),
        probe(sizes, both(lambda peer: Send(peer, one(0), INPUT), lambda peer: Recv(peer, one(0), OUTPUT))),
        probe(
            sizes,
            both(
                lambda peer: Send(peer, one(0), INPUT), lambda peer: RecvReduce(peer, one(0), INPUT, OUTPUT, peer == 1)
            ),
        ),
        probe(sizes, both(lambda _: Copy(one(0), INPUT, OUTPUT))),
    ]


@pytest.mark.slow
def test_the_fit_finds_the_machine_again() -> None:
    level = Level(
        name="node", ranks=None, latency=4e-7, gap=(6e-11, 1e-10, 2e-10), overhead=3e-7, ports=1, overlap=False
    )
    true = Machine(
        name="m", source="a test", levels=(level,), reduction=(5e-11, 1e-10, 2e-10), copy=(3e-11, 6e-11, 9e-11),
        reduction_overhead=1e-6, copy_overhead=4e-7, step=8e-7, caches=(1 << 19, 1 << 21), eager=1024,
    )  # fmt: skip
    found = fitted(probes(true, np.random.default_rng(5)), "m", "a test", 1024)
    assert (found.caches, found.levels[0].overlap, found.eager) == (true.caches, False, 1024)
    assert found.levels[0].gap == pytest.approx(level.gap, rel=0.05)
    assert found.reduction == pytest.approx(true.reduction, rel=0.1)
    assert found.copy == pytest.approx(true.copy, rel=0.1)
    assert (found.levels[0].overhead, found.step) == pytest.approx((level.overhead, true.step), rel=0.25)


def test_errors_are_relative_to_what_was_measured() -> None:
    made = [Prediction("bcast", "linear", 2, 8, measured=2.0, predicted=2.0 + d) for d in (-1.0, 0.0, 0.2, 0.4, 4.0)]
    assert errors(made) == pytest.approx((0.2, 1.4))
