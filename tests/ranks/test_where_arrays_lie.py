"""Every collective of arrays in memory that ranks share, even and uneven, in place or not, against the oracle."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.calls.choose import SHARED
from mpicoll.errors import MessageError
from tests import oracle
from tests.sharing import NEEDED

DRAWS = int(os.environ.get("MPICOLL_DRAWS", "150"))
SERVED = [name for name, table in COLLECTIVES.items() if table.moves and table.prefix is None]
UNEVEN = ["gather", "allgather", "scatter", "reduce_scatter"]
LENGTHS = (1 << 17) // 4, 131_079, 100_001
"""Elements. The shortest vector has so many bytes that ranks look where their arrays lie."""

pytestmark = NEEDED


def drawn(
    rng: random.Random, size: int, served: Sequence[str] = SERVED, lengths: Sequence[int] = LENGTHS
) -> dict[str, Any]:
    """What all ranks draw alike."""
    name = rng.choice(served)
    table = COLLECTIVES[name]
    dtype = rng.choice(["float32", "float64", "int32", "uint8", "float16", "complex64", "bool"])
    ops = {"bool": ["lor"], "complex64": ["sum"]}.get(dtype, ["sum", "max", "avg"])
    count = rng.choice(lengths) * 4 // np.dtype(dtype).itemsize
    if table.by_rank and not table.rooted:
        count = count // size + 1
    uneven = name in UNEVEN and rng.random() < 0.5
    cuts = sorted(rng.randrange(size * count + 1) for _ in range(size - 1))
    counts = [b - a for a, b in zip([0, *cuts], [*cuts, size * count], strict=True)] if uneven else [count] * size
    return {
        "name": name, "dtype": dtype, "op": rng.choice(ops), "root": rng.randrange(size), "counts": counts,
        "uneven": uneven, "in place": rng.random() < 0.4, "memory": rng.choice(["shared"] * 4 + ["mixed", "ordinary"]),
        "begins": rng.random() < 0.4,
    }  # fmt: skip


def inputs_of(d: dict[str, Any], fill: np.random.Generator, size: int) -> list[Any]:
    """Each rank's input, its blocks one after another."""
    table = COLLECTIVES[d["name"]]
    whole = sum(d["counts"])
    length = {"bcast": [d["counts"][0]] * size}.get(d["name"], d["counts"] if table.gives == "1" else [whole] * size)
    return [oracle.values(fill, d["dtype"], (n,), d["op"]) for n in length]


def expected_of(d: dict[str, Any], inputs: list[Any]) -> list[Any]:
    """Each rank's result; None where it has none."""
    name, size, root = d["name"], len(inputs), d["root"]
    table, ends = COLLECTIVES[name], [0, *accumulate(d["counts"])]
    if not d["uneven"]:
        shaped = [x.reshape(size, -1) if table.gives == "p" else x for x in inputs]
        return oracle.outcome(name, shaped, d["op"], root, d["dtype"])
    if table.gathers:
        return [np.concatenate(inputs) if table.gets_at(r, root) else None for r in range(size)]
    total = inputs[root]
    if table.reduces:
        wide = [x.astype(oracle.held(d["dtype"])) for x in inputs]
        total = oracle.rounded(oracle.reducer(d["op"], d["dtype"])(wide), d["dtype"])
    return [total[ends[r] : ends[r + 1]] for r in range(size)]


def make(comm: mpicoll.Communicator, d: dict[str, Any], inputs: list[Any], own: random.Random) -> tuple[Any, Any, bool]:
    """Make the call. Returns its result, its input, and whether that must be as before."""
    name, rank, root = d["name"], comm.rank, d["root"]
    table, ends, mine = COLLECTIVES[name], [0, *accumulate(d["counts"])], inputs[rank]

    def array(count: int) -> Any:
        shared = d["memory"] == "shared" or (d["memory"] == "mixed" and own.random() < 0.5)
        return (comm.empty if shared else np.empty)(count, mine.dtype)

    gives = table.gives_at(rank, root)
    x = out = None
    block = slice(ends[rank], ends[rank + 1])
    if table.gathers and d["in place"] and table.gets_at(rank, root):
        out = array(ends[-1])
        x = out[block]
    elif table.scatters and d["in place"] and gives:
        x = array(ends[-1])
        out = x[block]
    else:
        if gives or table.elementwise:
            x = array(mine.size)
        if table.elementwise and d["in place"]:
            out = x
        elif table.gets_at(rank, root) and name != "bcast":
            out = array(d["counts"][rank] if table.scatters else ends[-1] if table.gets == "p" else mine.size)
    if x is not None:
        x[...] = mine
    given: dict[str, Any] = {} if name == "bcast" else {"out": out}
    if "algorithm" in d:
        given["algorithm"] = d["algorithm"]
    if table.rooted:
        given["root"] = root
    if table.reduces:
        given["op"] = d["op"]
    if d["uneven"]:
        given["counts"] = d["counts"]
    method = f"{name}v" if d["uneven"] else name
    if not d["begins"]:
        result = getattr(comm, method)(x, **given)
    else:
        request = getattr(comm, f"i{method}")(x, **given)
        if own.random() < 0.5:
            time.sleep(own.random() * 0.003)
        request.wait()
        result = request.result
    return result, x, not d["in place"] and name != "bcast"


def test_random_calls() -> None:
    seed = int(os.environ.get("MPICOLL_SEED", "20261124"))
    print(f"MPICOLL_SEED={seed}")
    comm, common = mpicoll.Communicator(), random.Random(seed)
    own = random.Random(seed + 1 + comm.rank)
    served = set()
    for i in range(DRAWS):
        d = drawn(common, comm.size)
        inputs = inputs_of(d, np.random.default_rng([seed, i]), comm.size)
        expected = expected_of(d, inputs)[comm.rank]
        if own.random() < 0.05:
            time.sleep(own.random() * 0.003)
        result, x, unchanged = make(comm, d, inputs, own)
        where = f"draw {i} on rank {comm.rank} of {comm.size}, {comm.last_route}: {d}"
        if expected is not None:
            np.testing.assert_array_equal(np.ravel(result), expected, err_msg=where)
        if x is not None and unchanged:
            np.testing.assert_array_equal(x, inputs[comm.rank], err_msg=where)
        if comm.last_route == SHARED:
            served.add((d["name"], d["uneven"]))
        assert d["memory"] != "ordinary" or comm.last_route != SHARED, where
    if DRAWS >= 150:
        able = {(name, uneven) for name in SERVED for uneven in (False, *([True] * (name in UNEVEN)))}
        assert served == able
    comm.free()


def test_random_alltoallv() -> None:
    """Each rank knows its own counts alone."""
    comm, common = mpicoll.Communicator(), np.random.default_rng(3)
    rank, size = comm.rank, comm.size
    own, routes = random.Random(rank), []
    for turn in range(DRAWS // 3):
        counts = common.integers(0, 9_000, (size, size)) * (common.random((size, size)) < 0.8)
        lies = ["shared", "shared", "shared", "mixed"][turn % 4]
        first, last = comm.empty(1 << 17, np.float32), comm.empty(1 << 17, np.float32)
        if lies == "mixed" and own.random() < 0.5:
            first = np.empty(1 << 17, np.float32)
        xs, out = first[: counts[rank].sum()], last[: counts[:, rank].sum()]
        blocks = [
            [np.arange(n, dtype=np.float32) + 7 * i + 100 * j for j, n in enumerate(row)]
            for i, row in enumerate(counts)
        ]
        xs[...] = np.concatenate(blocks[rank])
        result = comm.alltoallv(xs, counts[rank].tolist(), counts[:, rank].tolist(), out=out)
        assert result is out
        np.testing.assert_array_equal(out, np.concatenate([blocks[i][rank] for i in range(size)]))
        routes.append(comm.last_route)
    assert routes.count(SHARED) >= len(routes) * 3 // 4
    comm.free()


def test_alltoallv_of_counts_that_differ() -> None:
    comm = mpicoll.Communicator()
    x, rows = comm.zeros(1 << 17, np.float32), [1_000] * comm.size
    comm.allreduce(x, out=x)
    xs, out = x[: 1_000 * comm.size], comm.empty(1 << 17, np.float32)[: 1_000 * comm.size]
    for _ in range(2):
        comm.alltoallv(xs, rows, rows, out=out)
    assert comm.last_route == SHARED
    expected = [*rows]
    expected[(comm.rank + 1) % comm.size] -= 1
    with pytest.raises(MessageError, match=r"alltoallv: expected 999 elements from rank \d; it sends 1000"):
        comm.alltoallv(xs, rows, expected, out=out[:-1])


@pytest.mark.mpi(min_size=2)
def test_memory_that_one_rank_cannot_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others do not take its next call for what is missing of this one: none has a wrong result."""
    with mpicoll.Communicator() as world, monkeypatch.context() as patched:
        comm = world.split(0)  # no other test has its memory
        assert comm is not None
        xs = [comm.empty(1 << 17, np.float64) for _ in range(2)]
        if comm.rank == 0:
            patched.setattr("mpicoll.fabrics.routes.node.opened", _is_refused)
        requests = [comm.iallreduce(x, out=x) for x in xs]
        for request in requests[: 1 if comm.rank else 2]:  # nobody completes the others' last one
            with pytest.raises(MessageError, match=r"cannot be opened|another rank makes another call"):
                request.wait()


def _is_refused(_: object) -> object:
    raise OSError(errno.EMFILE, "too many")
