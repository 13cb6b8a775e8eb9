"""Which route a call on device memory takes, by what was seen of the MPI library: the same on all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.calls.choose import PATHS
from mpicoll.fabrics import mpi
from mpicoll.probe import device_memory
from tests.devices.simulated import Simulated
from tests.sharing import SHARED

N = 100


class Other(Simulated):
    """A model that no other test has."""

    model = "another"


@pytest.fixture
def device() -> Simulated:
    return Other()


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices with which this rank has asked for test jobs. They are not started: what the MPI does is set by
    ``works``."""
    asked: list[str] = []

    def tried(device: Simulated) -> dict[str, str]:
        asked.append(device.name)
        return {path: "" if path in WORKS else "it ends by SIGSEGV" for path in PATHS}

    monkeypatch.setattr(device_memory, "tried", tried)
    monkeypatch.setattr(device_memory, "cached", lambda key: None)
    monkeypatch.setattr(device_memory, "keep", lambda key, found: None)
    monkeypatch.setattr(device_memory, "_known", {})
    monkeypatch.setitem(globals(), "WORKS", set(PATHS))
    return asked


WORKS: set[str] = set()


def copies(device: Simulated, call: Callable[[], Any]) -> tuple[Any, int]:
    """What the call returns, and how often the device has copied meanwhile."""
    device.current().record().wait()
    before = device.counts["copy"]
    result = call()
    device.current().record().wait()
    return result, device.counts["copy"] - before


def summed(comm: mpicoll.Communicator, device: Simulated, algorithm: str | None) -> int:
    """How often the device copies in an allreduce, whose result is right."""
    x = device.array(np.full(N, comm.rank + 1.0))
    total, n = copies(device, lambda: comm.allreduce(x, algorithm=algorithm))
    assert (total.get() == expected(comm)).all()
    return n


def gathered(comm: mpicoll.Communicator, device: Simulated, algorithm: str | None) -> int:
    """How often the device copies in an allgather, whose result is right."""
    x = device.array(np.full(N, comm.rank + 1.0))
    rows, n = copies(device, lambda: comm.allgather(x, algorithm=algorithm))
    np.testing.assert_array_equal(rows.get(), np.repeat(np.arange(1.0, comm.size + 1), N).reshape(comm.size, N))
    return n


def sent(comm: mpicoll.Communicator, device: Simulated) -> int:
    """How often the device copies when each rank sends to the next, and the right data arrives."""
    x, y = (device.array(np.full(N, value)) for value in (comm.rank + 1.0, 0.0))
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    _, n = copies(device, lambda: comm.sendrecv(x, after, out=y, source=before))
    assert (y.get() == before + 1.0).all()
    return n


def expected(comm: mpicoll.Communicator) -> float:
    return comm.size * (comm.size + 1) / 2


def test_one_rank_of_a_node_tries_and_tells_the_others(
    comm: mpicoll.Communicator, device: Simulated, tried: list[str]
) -> None:
    for algorithm in ("device", "native", "device"):
        summed(comm, device, algorithm)
    assert comm.allgather_object(len(tried)) == [1] + [0] * (comm.size - 1)


@pytest.mark.parametrize("algorithm", [None, "staged", "staged:native", "ring", "ipc"])
def test_a_call_that_cannot_use_it_does_not_ask(
    comm: mpicoll.Communicator, device: Simulated, tried: list[str], algorithm: str | None
) -> None:
    summed(comm, device, algorithm)
    comm.allreduce(np.ones(3), algorithm="native")
    assert not tried


def test_a_call_that_names_no_route_uses_what_was_tried_before(
    comm: mpicoll.Communicator, device: Simulated, tried: list[str]
) -> None:
    """It starts no test job itself. All ranks take the same route, though one of them alone has tried."""
    assert summed(comm, device, None) > 0
    assert not tried
    for algorithm in ("native", None, "native"):  # it gets the memory where that was seen to work
        assert summed(comm, device, algorithm) == 0
        assert comm.last_route == "native"
        assert gathered(comm, device, algorithm) == 0
    assert summed(comm, device, "ring") > 0
    assert summed(comm, device, "staged") > 0
    bits = device.array(np.full(N, 1.5, np.float32), "bfloat16")
    comm.allreduce(bits)
    assert comm.last_route == ("staged:node" if SHARED else "staged:exchange")
    with mpicoll.Communicator() as another:
        x = device.array(np.full(N, 1.0))
        another.allreduce(x)
        assert another.last_route == "native"


def test_plans_of_different_ages_take_the_same_route(
    comm: mpicoll.Communicator, device: Simulated, tried: list[str]
) -> None:
    """One rank finds its plan again, and the others have a new array, after a call has tried."""
    x = device.array(np.full(N, 1.0))
    out = device.array(np.zeros(N))
    comm.allreduce(x, out=out)
    assert comm.last_route.startswith("staged")
    comm.allreduce(x, out=out, algorithm="native")
    if comm.rank:
        x = device.array(np.full(N, 1.0))
    comm.allreduce(x, out=out)
    assert comm.allgather_object((comm.last_route, out.get()[0])) == [("native", comm.size)] * comm.size


@pytest.mark.parametrize("algorithm", [None, "native", "device"])
def test_one_rank_changes_its_device(comm: mpicoll.Communicator, tried: list[str], algorithm: str | None) -> None:
    one, two = Other(), Other()
    for here in (one, two if comm.rank == 0 else one):
        summed(comm, here, algorithm)
    route = comm.last_route
    assert comm.allgather_object(route) == [route] * comm.size


def test_messages_use_what_this_rank_knows(
    comm: mpicoll.Communicator, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end may do otherwise: it is the same message."""
    monkeypatch.setattr(mpi, "may_take_device_memory", lambda: True)
    assert sent(comm, Other()) > 0
    if comm.rank == 0:
        monkeypatch.setattr(device_memory, "cached", lambda key: dict.fromkeys(PATHS, ""))
    with mpicoll.Communicator() as knowing:
        assert (sent(knowing, Other()) == 0) == (comm.rank == 0)
    assert not tried


def test_in_place_on_some_ranks_alone(comm: mpicoll.Communicator, device: Simulated, tried: list[str]) -> None:
    x = device.array(np.full(N, comm.rank + 1.0))
    out = x if comm.rank == 0 else device.array(np.zeros(N))
    comm.allreduce(x, out=out, algorithm="native")
    assert (out.get() == expected(comm)).all()
    blocks = device.array(np.full((comm.size, N), comm.rank + 1.0))
    own = blocks[0] if comm.rank == 0 else device.array(np.zeros(N))
    before = device.counts["copy"]
    comm.reduce_scatter(blocks, out=own, algorithm="native")
    assert device.counts["copy"] > before, "it goes through the host on all ranks"
    assert (own.get() == expected(comm)).all()
    whole = device.array(np.full((comm.size, N), comm.rank + 1.0))
    given, into = (whole[comm.rank], whole) if comm.rank == 0 else (device.array(np.full(N, comm.rank + 1.0)), None)
    comm.gather(given, out=into, algorithm="native")
    if comm.rank == 0:
        np.testing.assert_array_equal(whole.get(), np.repeat(np.arange(1.0, comm.size + 1), N).reshape(comm.size, N))


@pytest.mark.parametrize("algorithm", ["device", "native"])
@pytest.mark.parametrize("fails", PATHS)
def test_what_was_seen_to_fail_goes_through_the_host(
    comm: mpicoll.Communicator,
    device: Simulated,
    tried: list[str],
    algorithm: str,
    fails: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each kind of call has its own path. Rank 0 warns."""
    monkeypatch.setitem(globals(), "WORKS", {*PATHS} - {fails})
    paths = ["messages"] if algorithm == "device" else ["reductions", "collectives"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        n = summed(comm, device, algorithm)
        assert (n > 0) == comm.last_route.startswith("staged:") == (fails == paths[0])
        assert algorithm == "device" or (gathered(comm, device, algorithm) > 0) == (fails == "collectives")
    words = [str(w.message) for w in said if "does not take memory" in str(w.message)]
    assert len(words) == (comm.rank == 0 and fails in paths)
    assert all(f"'{algorithm}'" in text for text in words)
    assert not comm.closed
