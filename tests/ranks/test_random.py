"""Hundreds of random calls, each against the oracle. Ranks draw alike; the printed seed repeats a failure."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.arrays.dtypes import DTYPES, OPS, reduction
from mpicoll.calls.choose import CommInfo, names
from tests import oracle
from tests.arrays import KINDS, back, kinds

pytestmark = pytest.mark.sizes(1, 2, 4)

DRAWS = 250
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
    assert backwards is not None
    assert half is not None
    return [world, backwards, half]


def draw(rng: np.random.Generator, traits: CommInfo) -> dict[str, Any]:
    size = traits.size
    name = str(rng.choice([c for c in COLLECTIVES if c != "barrier"]))
    table = COLLECTIVES[name]
    op = str(rng.choice(list(OPS))) if table.reduces else "sum"
    kinds_of_op = OPS[op][0] if table.reduces else "biufc"
    dtype = str(rng.choice([d.name for d in DTYPES.values() if d.kind in kinds_of_op]))
    shape = tuple(
        int(n) for n in rng.choice([0, 1, 2, 3, 17, 300], rng.integers(0, 4), p=[0.04, 0.2, 0.3, 0.3, 0.1, 0.06])
    )
    while np.prod(shape) > MANY:
        shape = shape[:-1]
    if rng.random() < 0.03:
        # More than one round of an exchange, or more than one piece of a message.
        shape = (int(rng.choice([70_000, 600_000], p=[0.9, 0.1])),)
    how = mpicoll.Op.premul_sum(1.0) if op == "premul_sum" else op
    which = reduction(how, DTYPES[dtype], name) if table.reduces else None
    cannot = {"native": which is not None and not which.mpi, "wide": which is not None and not which.rounds}
    return {
        "name": name,
        "op": op,
        "dtype": dtype,
        "shape": (size, *shape) if table.gives == "p" else shape,
        "root": int(rng.integers(size)),
        "kind": str(rng.choice(kinds(dtype))),
        "out": bool(rng.random() < 0.5),
        "slot": bool(rng.random() < 0.3),
        "algorithm": None
        if rng.random() < 0.2
        else str(rng.choice([a for a in names(name, traits) if not cannot.get(a)])),
        "factors": [float(f) for f in rng.choice([-1.0, 0.5, 2.0], size)],
    }


def call(comm: mpicoll.Communicator, d: dict[str, Any], inputs: list[Any]) -> tuple[Any, Any, Any]:
    """(result, x, the values that x must have afterwards) of the drawn call on this rank."""
    name, rank, size = d["name"], comm.rank, comm.size
    table = COLLECTIVES[name]
    make = KINDS[d["kind"]]
    mine = inputs[rank]
    x = make(mine, d["dtype"])
    arguments: dict[str, Any] = {"algorithm": d["algorithm"]}
    if table.rooted:
        arguments["root"] = d["root"]
    if table.reduces:
        arguments["op"] = mpicoll.Op.premul_sum(d["factors"][rank]) if d["op"] == "premul_sum" else d["op"]
    unchanged = mine
    elementwise = table.gives == table.gets == "1" and name != "bcast"
    if name == "scatter":
        # Only the root passes a vector, and only there may the output be made for the caller.
        if rank != d["root"] or d["out"]:
            arguments["out"] = make(np.zeros_like(mine[0]), d["dtype"])
        x = x if rank == d["root"] else None
    elif elementwise and d["slot"]:
        arguments["out"] = x
        unchanged = None
    elif name != "bcast" and d["out"]:
        blocks = mine if table.gives == table.gets else mine[0] if table.gives == "p" else np.stack([mine] * size)
        out = make(np.zeros_like(blocks), d["dtype"])
        if d["slot"] and table.gives == "1" and table.gets == "p" and d["kind"] in ("numpy", "torch"):
            out[rank, ...] = x
            x = out[rank, ...]
            unchanged = None
        if d["slot"] and name == "reduce_scatter" and d["kind"] in ("numpy", "torch"):
            out = x[rank, ...]
            unchanged = None
        arguments["out"] = out
    if name == "bcast":
        unchanged = None
    return getattr(comm, name)(x, **arguments), x, unchanged


def test_random_calls(communicators: list[mpicoll.Communicator]) -> None:
    seed = int(os.environ.get("MPICOLL_SEED", "20261121"))
    print(f"MPICOLL_SEED={seed}")
    rng = np.random.default_rng(seed)
    for i in range(DRAWS):
        comm = communicators[int(rng.integers(len(communicators)))]
        d = draw(np.random.default_rng([seed, i, comm.size]), comm._engine.info)
        fill = np.random.default_rng([seed, i])
        inputs = [oracle.values(fill, d["dtype"], d["shape"], d["op"]) for _ in range(comm.size)]
        expected = oracle.outcome(d["name"], inputs, d["op"], d["root"], d["dtype"], d["factors"])[comm.rank]
        result, x, unchanged = call(comm, d, inputs)
        where = f"draw {i} on rank {comm.rank} of {comm.size}: {d}"
        if expected is not None:
            np.testing.assert_array_equal(back(result).ravel(), expected, err_msg=where)
        elif d["name"] in ("reduce", "gather") or not (d["out"] or d["slot"]):
            assert result is None, where
        if x is not None and (unchanged is not None or (expected is None and d["name"] in ("reduce", "exscan"))):
            np.testing.assert_array_equal(back(x), inputs[comm.rank], err_msg=where)
