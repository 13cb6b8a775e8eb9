"""The fit with real ranks. It is short, because the test is whether it runs, not how well it predicts."""

from __future__ import annotations

import json
import os

import pytest
from mpi4py import MPI

from mpicoll import algorithms
from mpicoll.analysis.cost import fit as fitting
from mpicoll.analysis.cost.presets import from_dict
from mpicoll.bench import fit

pytestmark = pytest.mark.first_mpi


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SIZES": (64, 1 << 16), "CHECKED": (64, 1 << 14), "PASSES": 1, "SECONDS": 1e-3}.items():
        monkeypatch.setattr(fit, name, value)
    monkeypatch.setattr(fit, "PREDICTED", ("bcast", "allgather"))
    monkeypatch.setattr(fitting, "CACHES", ((1 << 17, 1 << 21),))
    monkeypatch.setattr(fitting, "ROUNDS", 4)


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
    assert machine.cores == os.cpu_count()
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
