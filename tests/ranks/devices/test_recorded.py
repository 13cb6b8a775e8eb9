"""The record of a call on device memory names the route that carried it out: what was chosen, or what took over."""

from __future__ import annotations

import numpy as np
import pytest

import mpicoll
from mpicoll.calls import choose
from mpicoll.calls.choose import PATHS
from mpicoll.fabrics.routes.devices import staged
from mpicoll.probe import device_memory
from tests.devices.on import OnSimulated
from tests.devices.simulated import Simulated
from tests.sharing import NEEDS_SHARED

pytestmark = [pytest.mark.mpi, pytest.mark.first_mpi, NEEDS_SHARED]  # most routes are by the kernel


@pytest.fixture(autouse=True)
def nothing_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a call which names no route is staged."""
    probed, untried = device_memory.probed, dict.fromkeys(PATHS, "nobody has tried")
    monkeypatch.setattr(device_memory, "probed", lambda device, tries: probed(device) if tries else untried)


def called(comm: mpicoll.Communicator, on: OnSimulated, algorithm: str | None, count: int = 30) -> str:
    """The route by which an allreduce went, whose result is right."""
    result = comm.allreduce(on.array(np.full(count, comm.rank + 1.0), "float64"), algorithm=algorithm)
    assert np.all(on.values(result) == comm.size * (comm.size + 1) / 2)
    return comm.last_route


@pytest.mark.parametrize(
    ("algorithm", "route"),
    [
        (None, "staged:node"),
        ("staged", "staged:node"),
        ("staged:ring", "staged:ring"),
        ("ring", "staged:ring"),
        ("exchange", "staged:exchange"),
        ("device:ring", "device:ring"),
        ("ipc", "ipc"),
    ],
)
def test_what_was_asked_for(comm: mpicoll.Communicator, algorithm: str | None, route: str) -> None:
    on = OnSimulated()
    assert called(comm, on, algorithm) == route
    assert called(comm, on, algorithm) == route  # by the plan of the first call


@pytest.mark.parametrize("shared", [True, False])
def test_long_calls_of_ranks_that_share_a_device(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setattr(choose, "IPC_FROM", 800)
    monkeypatch.setattr(Simulated, "identity", "the one" if shared else f"that of rank {comm.rank}")
    on, alone = OnSimulated(), comm.size == 1
    for count, route in ((99, "staged:node"), (100, "ipc" if shared or alone else "staged:node")):
        for _ in range(2):
            assert called(comm, on, None, count) == route
    assert called(comm, on, "staged", 100) == "staged:node"
    rules = {"MPICOLL_ALGORITHM": "allreduce:ring", "MPICOLL_REPRODUCIBLE": "1"}
    for name, route in zip(rules, ("staged:ring", "staged:node"), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, rules[name])
            another = mpicoll.Communicator()
        assert called(another, on, None, 100) == route
        another.free()
    x, out = on.array(np.ones(50), "float64"), on.array(np.zeros(50 * comm.size), "float64")
    comm.allgatherv(x, [50] * comm.size, out=out)
    assert np.all(on.values(out) == 1)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("count", [30, 1 << 17])  # the longer one is bound at its first run
def test_memory_that_cannot_be_opened_is_staged(comm: mpicoll.Communicator, count: int) -> None:
    on = OnSimulated()
    if comm.rank == 0:
        on.device.fail("open")
    route, _, algorithm = called(comm, on, "ipc", count).partition(":")
    assert (route, bool(algorithm)) == ("staged", True)


@pytest.mark.mpi(min_size=2)
def test_memory_that_can_be_opened_again(comm: mpicoll.Communicator) -> None:
    """The same plan goes one way, and then the other."""
    on = OnSimulated()
    x = on.array(np.zeros(3), "float64")
    if comm.rank == comm.size - 1:
        on.device.fail("export")
    routes = []
    for _ in range(2):
        comm.allreduce(x, out=x, algorithm="ipc")
        routes.append(comm.last_route)
    assert routes == ["staged:node", "ipc"]


def test_pieces_that_go_different_ways(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last piece is shorter, and an algorithm may be chosen by length."""
    monkeypatch.setattr(staged, "PIECE", 64)
    monkeypatch.setattr(
        "mpicoll.calls.choose._best", lambda *call: ("ring" if call[2] == 64 else "recursive_doubling", "")
    )
    assert called(comm, OnSimulated(), None, 20) == "staged:ring+recursive_doubling"
