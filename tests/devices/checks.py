"""A collective on arrays of one kind, and what the oracle says of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

import mpicoll
from mpicoll import Op
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.fabrics.routes.devices import staged
from tests import oracle
from tests.devices.on import Array, On, laid_out

MOVING = [name for name in COLLECTIVES if name != "barrier"]
FACTORS = (2.0, -1.0, 0.5, 4.0)
PIECES = {"": staged.PIECE, " in many pieces": 48}
Test = TypeVar("Test", bound=Callable[..., object])


def by(*routes: str) -> Callable[[Test], Test]:
    """Run a test for each ``route``, and once more for the one that cuts what is long into pieces, with short ones."""
    ways = [(route, what) for route in routes for what in PIECES if route == "staged" or not what]

    def mark(test: Test) -> Test:
        pytest.mark.usefixtures("piece")(test)
        arguments = [pytest.param(route, PIECES[what], id=route + what) for route, what in ways]
        pytest.mark.parametrize(("route", "piece"), arguments, indirect=["piece"])(test)
        return test

    return mark


def check(comm: mpicoll.Communicator, on: On, name: str, route: str | None, dtype: str, op: str, shape: tuple[int, ...],
          layout: str, root: int = 0) -> None:  # fmt: skip
    """One call with an output of its own, and one in place where there is such a call. Where blocks are gathered or
    scattered, a rank's own block is then a part of the other array, which has no gaps."""
    table, where = COLLECTIVES[name], f"{name} by {route}: {op} of {shape} {dtype}, {layout}, root {root}"
    rng = np.random.default_rng(zlib.crc32(where.encode()))
    whole = (comm.size, *shape) if table.gives == "p" else shape
    inputs = [oracle.values(rng, dtype, whole, op) for _ in range(comm.size)]
    factors = FACTORS[: comm.size]
    expected: Any = oracle.outcome(name, inputs, op, root, dtype, factors)[comm.rank]
    has_own_block = layout == "plain" and inputs[0].size
    arguments: dict[str, Any] = {"algorithm": route}
    if table.rooted:
        arguments["root"] = root
    if table.reduces:
        arguments["op"] = Op.premul_sum(factors[comm.rank]) if op == "premul_sum" else op
    x = laid_out(on, inputs[comm.rank], dtype, layout)
    if name != "bcast" and (name == "scatter" or layout != "plain"):
        blocks = (comm.size,) if table.gets == "p" else ()
        if table.gets_at(comm.rank, root):
            arguments["out"] = laid_out(on, np.ones((*blocks, *shape), inputs[0].dtype), dtype, layout)
    call = getattr(comm, name)
    result = call(x, **arguments)
    if expected is not None:
        same(on.values(result), expected, where)
    if name != "bcast":
        same(on.values(x), inputs[comm.rank].ravel(), where + ": its input")
    if table.reduces and table.elementwise:
        call(x, **{**arguments, "out": x})
        left = expected if expected is not None else inputs[comm.rank].ravel()
        if table.gets_at(comm.rank, root):
            same(on.values(x), left, where + ", in place")
    elif table.gathers and has_own_block:
        rows = np.zeros((comm.size, *shape), inputs[0].dtype)
        rows[comm.rank] = inputs[comm.rank]
        out = on.array(rows, dtype)
        call(out[comm.rank, ...], **{**arguments, "out": out})
        if expected is not None:
            same(on.values(out), expected, where + ", in place")
    elif table.scatters and has_own_block:
        rows = inputs[comm.rank]
        if table.gives_at(comm.rank, root):
            arguments["out"] = x[comm.rank, ...]
            rows[comm.rank] = expected.reshape(shape)
        same(on.values(call(x, **arguments)), expected, where + ", in place")
        same(on.values(x), rows.ravel(), where + ", in place: its input")


def check_uneven(comm: mpicoll.Communicator, on: On, name: str, route: str, root: int = 0) -> None:
    """One call on blocks of different numbers of rows, of which some are empty."""
    table, rank, ranks = COLLECTIVES[name], comm.rank, range(comm.size)
    of_all = table.gives == table.gets  # each rank has blocks of its own for each
    rows = [[(s + r) % 3 if of_all else (3 * r + 1) % 4 for r in ranks] for s in ranks]
    rng = np.random.default_rng(7)
    blocks = [[oracle.values(rng, "float64", (n, 3)) for n in of_one] for of_one in rows]
    given: list[Any] = blocks if table.gives == "p" else [of_one[r] for r, of_one in enumerate(blocks)]
    expected = oracle.outcome(name, given, root=root)[rank]
    arguments: dict[str, Any] = {"algorithm": route, "counts": rows[0]}
    if of_all:
        arguments = {"algorithm": route, "sendcounts": rows[rank], "recvcounts": [row[rank] for row in rows]}
    if table.rooted:
        arguments["root"] = root
    if name == "scatter":
        arguments["out"] = on.array(np.zeros((rows[0][rank], 3)), "float64")
    x = np.concatenate(given[rank]) if table.gives == "p" else given[rank]
    result = getattr(comm, f"{name}v")(on.array(x, "float64"), **arguments)
    if expected is None:
        assert result is None
    else:
        same(on.values(result), expected, f"{name}v by {route}, root {root}")


def same(found: Array, expected: Array, where: str) -> None:
    np.testing.assert_array_equal(np.ravel(found), expected, err_msg=where)
