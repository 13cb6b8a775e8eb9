"""A random call of a collective, made on all ranks and compared with the oracle. All ranks draw alike."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from tests import oracle
from tests.arrays import KINDS, as_torch, back, kinds

UNEVEN = ("gather", "allgather", "scatter", "reduce_scatter", "alltoall")

Drawn = dict[str, Any]
"""A ``name`` of a collective, ``op``, ``dtype``, ``root``, ``algorithm`` and ``factors``. ``counts`` are the rows of
each rank, or in an alltoall those of each rank for each, and None where blocks are even; ``shape`` is that of a row, or
of a block. ``kind`` and ``memory`` say what the arrays are; without a kind, each rank draws its own. ``out`` and ``in
place`` say what the call writes to, ``begins`` that it does not block, and ``turns`` how often it is made."""


def counts_of(name: str, rng: np.random.Generator, size: int, most: int) -> Any:
    return rng.integers(0, most + 1, (size, size) if name == "alltoall" else size).tolist()


def called(comm: mpicoll.Communicator, d: Drawn, fill: np.random.Generator, own: random.Random, where: str) -> None:
    """Make the call, again and again with other values in the same arrays. Its result is right, its input is as before,
    and so is what lies between the elements of the arrays. ``own`` draws what differs between ranks."""
    name, rank, root, size, counts = d["name"], comm.rank, d["root"], comm.size, d["counts"]
    table, where = COLLECTIVES[name], f"{where} on rank {rank} of {size}: {d}"
    each_gives_each = table.gives == table.gets == "p"
    parts = counts if counts is None or each_gives_each else [counts] * size  # of what each rank gives, or all have
    given: list[tuple[int, ...]] = [(size,) if table.gives == "p" else ()] * size
    whole, block = (size,), (rank, ...)
    if counts is not None:
        given = [(sum(part),) if table.gives == "p" else (part[r],) for r, part in enumerate(parts)]
        whole = (sum(part[rank] for part in parts) if each_gives_each else sum(counts),)
        begin = 0 if each_gives_each else sum(counts[:rank])
        block = (slice(begin, begin + parts[0][rank]), ...)  # type: ignore[assignment]

    def values() -> tuple[Any, Any]:
        """This rank's input and its result."""
        inputs: list[Any] = [oracle.values(fill, d["dtype"], (*rows, *d["shape"]), d["op"]) for rows in given]
        mine = inputs[rank]
        if counts is not None and table.gives == "p":
            inputs = [np.split(x, np.cumsum(part)[:-1]) for x, part in zip(inputs, parts, strict=True)]
        return mine, oracle.outcome(name, inputs, d["op"], root, d["dtype"], d["factors"])[rank]

    arrays, kind = [], d["kind"] or own.choice(kinds(d["dtype"]))

    def array(values: Any) -> Any:
        if d["memory"] == "shared" or (d["memory"] == "mixed" and own.random() < 0.5):
            return comm.empty(values.shape, values.dtype)
        arrays.append(made := KINDS[kind](np.zeros_like(values), d["dtype"]))
        return made

    mine, expected = values()
    gives, may_be_part = table.gives_at(rank, root), d["in place"] and kind in ("numpy", "torch")
    x: Any = array(mine) if gives or table.elementwise else None
    out: Any = None
    gets = table.gets_at(rank, root)
    if gets and name != "bcast":
        if table.elementwise and d["in place"]:
            out = x
        elif table.gathers and may_be_part:
            out = array(np.zeros((*whole, *d["shape"]), mine.dtype))
            x = out[block]
        elif table.scatters and may_be_part and gives:
            out = x[block]
        elif d["out"] or x is None:
            all_blocks = np.zeros((*whole, *d["shape"]), mine.dtype) if table.gets == "p" else np.zeros_like(mine)
            out = array(all_blocks[block] if table.scatters else all_blocks)
    elif d["out"] and name != "bcast":  # it is not used
        out = array(np.ones_like(mine))
    unused = out if expected is None and out is not x else None
    if unused is not None:
        assign(unused, np.ones(()), d["dtype"])
    arguments = {"algorithm": d["algorithm"], **({"root": root} if table.rooted else {})}
    if name != "bcast":
        arguments["out"] = out
    if table.reduces:
        arguments["op"] = mpicoll.Op.premul_sum(d["factors"][rank]) if d["op"] == "premul_sum" else d["op"]
    if counts is not None and each_gives_each:
        arguments |= {"sendcounts": counts[rank], "recvcounts": [row[rank] for row in counts]}
    elif counts is not None:
        arguments["counts"] = counts
    method = f"{name}v" if counts is not None else name
    for turn in range(d["turns"]):
        if turn:
            mine, expected = values()
        if x is not None:
            assign(x, mine, d["dtype"])
        if d["begins"]:
            request = getattr(comm, f"i{method}")(x, **arguments)
            if own.random() < 0.5:
                time.sleep(own.random() * 0.003)
            request.wait()
            result = request.result
        else:
            result = getattr(comm, method)(x, **arguments)
        if expected is not None:
            np.testing.assert_array_equal(back(result).ravel(), expected, err_msg=where)
        elif out is None or not gets:
            assert result is None, where
        assert unused is None or (back(unused) == 1).all(), where
        if x is not None and (expected is None or not (d["in place"] or name == "bcast")):
            np.testing.assert_array_equal(back(x), mine, err_msg=where)
        assert all(map(has_empty_gaps, arrays)), where


def assign(x: Any, values: Any, dtype: str) -> None:
    if isinstance(x, torch.Tensor):
        x.detach()[...] = as_torch(values, dtype)
    else:
        np.asarray(x)[...] = values


def has_empty_gaps(x: Any) -> bool:
    """Whether the memory has zeros where the array has no elements."""
    memory = x._base if isinstance(x, torch.Tensor) else getattr(x, "base", None)
    return memory is None or np.count_nonzero(back(memory)) == np.count_nonzero(back(x))
