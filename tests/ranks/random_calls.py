"""A random call of a collective, made on all ranks and compared with the oracle. All ranks draw alike."""

from __future__ import annotations

import random
import time
from itertools import accumulate
from typing import Any

import numpy as np

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from tests import oracle
from tests.arrays import KINDS, back

UNEVEN = ("gather", "allgather", "scatter", "reduce_scatter")

Drawn = dict[str, Any]
"""A ``name`` of a collective, ``op``, ``dtype``, ``root``, ``algorithm`` and ``factors``. ``counts`` are the rows of
each rank, and None where blocks are even; ``shape`` is that of a row, or of a block. ``kind`` and ``memory`` say what
the arrays are. ``out`` and ``in place`` say what the call writes to, and ``begins`` that it does not block."""


def called(comm: mpicoll.Communicator, d: Drawn, fill: np.random.Generator, own: random.Random, where: str) -> None:
    """Make the call. Its result is right, and its input is as before. ``own`` draws what differs between ranks."""
    name, rank, root, size, counts = d["name"], comm.rank, d["root"], comm.size, d["counts"]
    table, where = COLLECTIVES[name], f"{where} on rank {rank} of {size}: {d}"
    ends = [0, *accumulate(counts or ())]
    blocks = (size,) if counts is None else (ends[-1],)
    block = (rank, ...) if counts is None else slice(ends[rank], ends[rank + 1])
    given_rows = [blocks if table.gives == "p" else () if counts is None else (n,) for n in counts or range(size)]
    inputs = [oracle.values(fill, d["dtype"], (*rows, *d["shape"]), d["op"]) for rows in given_rows]
    mine, cut = inputs[rank], inputs
    if counts is not None and table.gives == "p":
        cut = [np.split(x, ends[1:-1]) for x in inputs]  # type: ignore[misc]
    expected = oracle.outcome(name, cut, d["op"], root, d["dtype"], d["factors"])[rank]

    def array(values: Any) -> Any:
        if d["memory"] == "shared" or (d["memory"] == "mixed" and own.random() < 0.5):
            made = comm.empty(values.shape, values.dtype)
            made[...] = values
            return made
        return KINDS[d["kind"]](values, d["dtype"])

    gives, may_be_part = table.gives_at(rank, root), d["in place"] and d["kind"] in ("numpy", "torch")
    x: Any = array(mine) if gives or table.elementwise else None
    out: Any = None
    if table.gets_at(rank, root) and name != "bcast":
        if table.elementwise and d["in place"]:
            out = x
        elif table.gathers and may_be_part:
            out = array(np.zeros((*blocks, *d["shape"]), mine.dtype))
            out[block] = x
            x = out[block]
        elif table.scatters and may_be_part and gives:
            out = x[block]
        elif d["out"] or x is None:
            zeros = np.zeros((*blocks, *d["shape"]), mine.dtype) if table.gets == "p" else np.zeros_like(mine)
            out = array(zeros[block] if table.scatters else zeros)
    arguments = {"algorithm": d["algorithm"], **({"root": root} if table.rooted else {})}
    if name != "bcast":
        arguments["out"] = out
    if table.reduces:
        arguments["op"] = mpicoll.Op.premul_sum(d["factors"][rank]) if d["op"] == "premul_sum" else d["op"]
    if counts is not None:
        name, arguments["counts"] = f"{name}v", counts
    if d["begins"]:
        request = getattr(comm, f"i{name}")(x, **arguments)
        if own.random() < 0.5:
            time.sleep(own.random() * 0.003)
        request.wait()
        result = request.result
    else:
        result = getattr(comm, name)(x, **arguments)
    if expected is not None:
        np.testing.assert_array_equal(back(result).ravel(), expected, err_msg=where)
    elif out is None:
        assert result is None, where
    if x is not None and (expected is None or not (d["in place"] or name == "bcast")):
        np.testing.assert_array_equal(back(x), mine, err_msg=where)
