"""Calls every two-level algorithm, and compares what comes out with the oracle. Prints as JSON what the node of
each rank sends and receives in a call, as parts of the vector."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.algorithms import algorithms
from mpicoll.algorithms.collectives import COLLECTIVES
from tests import oracle

COUNTERS = Path("/sys/class/net/eth0/statistics")
NBYTES, CALLS = 1 << 20, 4
comm = mpicoll.Communicator()


def checked(collective: str, n: int, dtype: str, op: str, root: int = 0, algorithm: str | None = "two_level") -> None:
    """A call, and for an elementwise reduction a call in place, against the oracle."""
    table = COLLECTIVES[collective]
    fill = np.random.default_rng([n, root])
    shape = (comm.size, n) if table.gives == "p" else (n,)
    inputs = [oracle.values(fill, dtype, shape, op) for _ in range(comm.size)]
    expected = oracle.outcome(collective, inputs, op, root, dtype)[comm.rank]
    words: dict[str, Any] = {"algorithm": algorithm} | ({"root": root} if table.rooted else {})
    words |= {"op": op} if table.reduces else {}
    words |= {"out": np.zeros(n, inputs[0].dtype)} if collective == "scatter" else {}
    call, x = getattr(comm, collective), inputs[comm.rank].copy()
    where = f"{collective} of {n} {dtype}, {op}, root {root}, rank {comm.rank}"
    result = call(x, **words)
    if expected is not None:
        np.testing.assert_array_equal(np.ravel(x if collective == "bcast" else result), expected, err_msg=where)
    if table.reduces and table.elementwise:
        call(x, out=x, **words)
        if expected is not None:
            np.testing.assert_array_equal(x, expected, err_msg=f"{where}, in place")


def counters() -> list[int]:
    """The bytes that this node has sent, and received."""
    return [int((COUNTERS / f"{way}_bytes").read_text()) for way in ("tx", "rx")]


def counted(collective: str) -> list[float]:
    """What this node sends and receives in a call, as parts of the vector."""
    table = COLLECTIVES[collective]
    n = NBYTES // 8 // (comm.size if table.by_rank else 1)
    x = np.zeros((comm.size, n) if table.gives == "p" else n)
    words: dict[str, Any] = {"algorithm": "two_level"} | ({"out": np.zeros(n)} if collective == "scatter" else {})
    call = getattr(comm, collective)
    call(x, **words)  # connects
    MPI.COMM_WORLD.Barrier()
    before = counters()
    MPI.COMM_WORLD.Barrier()
    for _ in range(CALLS):
        call(x, **words)
    MPI.COMM_WORLD.Barrier()
    return [(b - a) / CALLS / NBYTES for a, b in zip(before, counters(), strict=True)]


parts = {}
for each in [a.collective for a in algorithms() if a.name == "two_level"]:
    if not COLLECTIVES[each].moves:
        for _ in range(3):
            comm.barrier(algorithm="two_level")
        continue
    for root in {0, comm.size - 1} if COLLECTIVES[each].rooted else {0}:
        for n in (0, 1, 30, 3001, 70_000):
            checked(each, n, "float64", "sum", root)
        checked(each, 1001, "float32", "max", root)
        checked(each, 1001, "float16", "sum", root)
    parts[each] = MPI.COMM_WORLD.gather(counted(each))
defaults = []
for dtype, op in (("float16", "sum"), ("float32", "max"), ("float32", "sum")):
    checked("allreduce", 600_000, dtype, op, algorithm=None)
    defaults.append(comm.last_route)
    for count in (0, 1, 1001):
        if dtype == "float16":
            checked("allreduce", count, dtype, op, algorithm="wide")
if comm.rank == 0:
    sys.stdout.write(json.dumps({"parts": parts, "defaults": defaults}) + "\n")
