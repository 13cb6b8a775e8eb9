"""Hundreds of random calls, each against the oracle. Ranks draw alike; the printed seed repeats a failure."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.arrays.dtypes import DTYPES, OPS, reduction
from mpicoll.calls.choose import CommInfo, names
from tests.arrays import kinds
from tests.ranks.random_calls import UNEVEN, Drawn, called, counts_of

pytestmark = pytest.mark.sizes(1, 2, 4)

DRAWS = 300
MANY = 10_000
"""Elements of an array, but for the few long vectors: to compute what must come out takes longer than the call."""


@pytest.fixture(scope="module")
def communicators(pytestconfig: pytest.Config) -> list[mpicoll.Communicator]:
    """Communicators of all ranks, in two orders, and of every second rank. Ranks that are threads make their own."""
    return [] if pytestconfig.getoption("--threads") else make_communicators()


def make_communicators() -> list[mpicoll.Communicator]:
    world = mpicoll.Communicator()
    backwards = world.split(0, -world.rank)
    half = world.split(world.rank % 2, world.rank)
    return [world, backwards, half]


def draw(rng: np.random.Generator, info: CommInfo) -> Drawn:
    size = info.size
    name = str(rng.choice([c for c in COLLECTIVES if c != "barrier"]))
    table, uneven = COLLECTIVES[name], name in UNEVEN and rng.random() < 0.2
    op = str(rng.choice(list(OPS))) if table.reduces else "sum"
    kinds_of_op = OPS[op][0] if table.reduces else "biufc"
    dtype = str(rng.choice([d.name for d in DTYPES.values() if d.kind in kinds_of_op]))
    lengths = rng.choice([0, 1, 2, 3, 17, 300], rng.integers(0, 4), p=[0.04, 0.2, 0.3, 0.3, 0.1, 0.06])
    shape = tuple(map(int, lengths))
    while np.prod(shape) > MANY:
        shape = shape[:-1]
    if rng.random() < 0.03:
        # More than one round of an exchange, or more than one piece of a message.
        shape = (int(rng.choice([70_000, 600_000], p=[0.9, 0.1])),)
    how = mpicoll.Op.premul_sum(1.0) if op == "premul_sum" else op
    which = reduction(how, DTYPES[dtype], name) if table.reduces else None
    cannot = {"native": which is not None and not which.mpi, "wide": which is not None and not which.rounds}
    algorithms = [a for a in names(f"{name}v" if uneven else name, info) if not cannot.get(a)]
    return {
        "name": name, "op": op, "dtype": dtype, "counts": counts_of(name, rng, size, 3) if uneven else None,
        "shape": shape, "root": int(rng.integers(size)),
        "kind": None if rng.random() < 0.4 else str(rng.choice(kinds(dtype))), "memory": "ordinary",
        "out": bool(rng.random() < 0.5), "in place": bool(rng.random() < 0.3), "begins": bool(rng.random() < 0.2),
        "algorithm": None if rng.random() < 0.2 else str(rng.choice(algorithms)),
        "factors": [float(f) for f in rng.choice([-1.0, 0.5, 2.0], size)], "turns": int(rng.choice([1, 3])),
    }  # fmt: skip


def test_random_calls(communicators: list[mpicoll.Communicator]) -> None:
    seed = int(os.environ.get("MPICOLL_SEED", "20261121"))
    print(f"MPICOLL_SEED={seed}")
    rng = np.random.default_rng(seed)
    for i in range(DRAWS):
        comm = communicators[int(rng.integers(len(communicators)))]
        d = draw(np.random.default_rng([seed, i, comm.size]), comm._engine.info)
        called(comm, d, np.random.default_rng([seed, i]), random.Random(seed + i + comm.rank), f"draw {i}")
