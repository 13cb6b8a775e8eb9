"""Calls come after what the caller has queued, and before what the caller streams then, whatever is late.

No call waits for a device, and no test does so between calls. So wherever the order is broken, old values are found."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from tests import oracle
from tests.devices.checks import MOVING
from tests.devices.on import LAYOUTS, ROUTES, On, laid_out, routes_of

pytestmark = [pytest.mark.first_mpi, pytest.mark.usefixtures("piece")]

SEED = int(os.environ.get("MPICOLL_SEED", "1"))
CALLS = 10_000
"""A twentieth of them where ranks take turns on cores: then each call waits for the system's scheduler."""
TOGETHER = 20
"""Calls between two looks at their results."""


def random_call(comm: mpicoll.Communicator, on: On, random: np.random.Generator) -> Callable[[], bool]:
    """A call, the same on all ranks, on arrays that are written late. Its result is copied and overwritten at once. The
    function that it returns looks at the copy, and says whether it is right."""
    name = MOVING[random.integers(len(MOVING))]
    table = COLLECTIVES[name]
    route = str(random.choice(routes_of(on)))
    layout = LAYOUTS[random.integers(len(LAYOUTS))] if random.random() < 0.2 else "plain"
    count, root = int(random.integers(1, 40)), int(random.integers(comm.size)) if table.rooted else 0
    shape = (comm.size, count) if table.gives == "p" else (count,)
    inputs = [random.integers(-9, 9, shape).astype(np.float32) for _ in range(comm.size)]
    stream = int(random.choice([0, 0, 0, 1, 2]))
    with on.working_on(stream):
        x = laid_out(on, np.zeros(shape, np.float32), "float32", layout)
        on.copy(x, on.array(inputs[comm.rank], "float32"))
        arguments: dict[str, Any] = {"algorithm": route} | ({"root": root} if table.rooted else {})
        if name == "scatter":
            arguments["out"] = on.array(np.zeros(count), "float32")
        elif table.elementwise and table.reduces and random.random() < 0.5:
            arguments["out"] = x
        result = getattr(comm, name)(x, **arguments)
        expected: Any = oracle.outcome(name, inputs, "sum", root, "float32")[comm.rank]
        if expected is None or result is None:
            return lambda: True
        kept = on.array(np.full(expected.size, -100), "float32")
        blocks = (comm.size,) if table.gets == "p" and table.gives != "p" else ()
        whole = on.array(np.zeros((*blocks, *result.shape[len(blocks) :])), "float32")
        on.copy(whole, result)
        on.copy(result, on.array(np.full(result.shape, 77), "float32"))
        on.copy(kept, vector(whole))

    def is_right() -> bool:
        with on.working_on(stream):
            return np.array_equal(on.values(kept), expected)

    return is_right


def vector(x: Any) -> Any:
    """The elements of an array without gaps."""
    return x._as(x.layout.reshape(-1)) if hasattr(x, "_as") else x.reshape(-1)


@pytest.mark.slow
def test_random_calls(comm: mpicoll.Communicator, on: On) -> None:
    print(f"MPICOLL_SEED={SEED}")
    random = np.random.default_rng(SEED)
    calls = CALLS if comm.size <= len(os.sched_getaffinity(0)) else CALLS // 20
    for _ in range(0, calls, TOGETHER):
        looks = [random_call(comm, on, random) for _ in range(TOGETHER)]
        assert all(is_right() for is_right in looks)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_two_communicators_on_two_streams(comm: mpicoll.Communicator, on: On, route: str) -> None:
    other = mpicoll.Communicator()
    results = []
    for i in range(50):
        x = on.array(np.full(30, comm.rank + i), "float32")
        with on.working_on(1):
            y = on.array(np.full(30, comm.rank - i), "float32")
            results.append((1, other.allreduce(y, algorithm=route), sum(range(comm.size)) - i * comm.size))
        results.append((0, comm.allreduce(x, algorithm=route), sum(range(comm.size)) + i * comm.size))
        if i % 10 == 9:
            for stream, found, expected in results:
                with on.working_on(stream):
                    assert (on.values(found) == expected).all()
            results.clear()
    other.free()
