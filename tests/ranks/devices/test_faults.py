"""What happens when a device has no memory left, cannot export it, or fails at a copy: at each place in turn.

A call takes another route and is right, or raises an error with a name on every rank. Nothing is lost, and no rank
waits for ever."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.errors import ArgumentError, DeviceError, DeviceFailure, MismatchError, StateError
from tests import oracle
from tests.devices.checks import MOVING
from tests.devices.on import ROUTES, OnSimulated, laid_out
from tests.devices.simulated import Simulated

pytestmark = [pytest.mark.first_mpi, pytest.mark.usefixtures("piece")]
LAST = 40
"""More than the things of one kind that any of these calls asks for."""


@pytest.fixture
def on() -> OnSimulated:
    return OnSimulated(delay=2e-4)


def called(comm: mpicoll.Communicator, on: OnSimulated, name: str, route: str, layout: str = "plain") -> bool:
    """Make a call, and say whether its result is right. Raises what the call raises, and what the device reports."""
    table = COLLECTIVES[name]
    shape = (comm.size, 30) if table.gives == "p" else (30,)
    inputs = [np.arange(30.0 * comm.size)[: np.prod(shape)].reshape(shape) + r for r in range(comm.size)]
    x = laid_out(on, inputs[comm.rank], "float64", layout)
    arguments: dict[str, Any] = {"algorithm": route}
    if name == "scatter":
        arguments["out"] = on.array(np.zeros(30), "float64")
    elif table.reduces and table.elementwise:
        arguments["out"] = x
    result = getattr(comm, name)(x, **arguments)
    expected = oracle.outcome(name, inputs)[comm.rank]
    if expected is None:
        on.device.current().synchronize()
        return True
    return np.array_equal(np.ravel(on.values(result)), expected)


def places(
    comm: mpicoll.Communicator, on: OnSimulated, what: str, name: str, route: str, layout: str = "plain"
) -> Iterator[int]:
    """Each place where a call can ask for the thing that fails."""
    before = on.device.counts[what]
    fresh = mpicoll.Communicator()
    assert called(fresh, on, name, route, layout)
    fresh.free()
    most = max(comm.allgather_object(on.device.counts[what] - before))
    assert most < LAST
    yield from range(1, most + 1)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", MOVING)
def test_no_pinned_memory(comm: mpicoll.Communicator, on: OnSimulated, name: str, route: str) -> None:
    """The next sort of memory serves, even if only one rank has no memory."""
    for number in places(comm, on, "pinned", name, route):
        fresh = mpicoll.Communicator()
        if comm.rank == number % comm.size:
            on.device.fail("pinned", number)
        assert called(fresh, on, name, route)
        on.device.fail("pinned", 0)
        fresh.free()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["export", "open"])
@pytest.mark.parametrize("name", MOVING)
def test_memory_that_cannot_be_opened(comm: mpicoll.Communicator, name: str, what: str) -> None:
    """All ranks take the next route, even if only one rank has such memory."""
    for number in (1, 2):
        for rank in range(comm.size):
            on, fresh = OnSimulated(delay=2e-4), mpicoll.Communicator()
            if comm.rank == rank:
                on.device.fail(what, number)
            for _ in range(3):
                assert called(fresh, on, name, "ipc")
            fresh.free()


def ended(comm: mpicoll.Communicator, on: OnSimulated, name: str, route: str, layout: str = "plain") -> str:
    """How a call ends: ``right``, ``wrong``, or the words of its error."""
    try:
        return "right" if called(comm, on, name, route, layout) else "wrong"
    except (MemoryError, DeviceError, DeviceFailure) as e:
        return str(e)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["allreduce", "exscan", "reduce_scatter", "allgather"])
def test_no_memory_of_the_device(comm: mpicoll.Communicator, on: OnSimulated, name: str, route: str) -> None:
    """All ranks have no memory at the same place: a result, an array's copy without gaps, or scratch memory."""
    for layout in ("plain", "strided"):
        ends = []
        for number in places(comm, on, "allocation", name, route, layout):
            fresh = mpicoll.Communicator()
            on.device.fail("allocation", number)
            ends.append(ended(fresh, on, name, route, layout))
            assert not fresh.closed  # nothing has moved
            on.device.fail("allocation", 0)
            assert called(fresh, on, name, route, layout)
            fresh.free()
        assert [end for end in ends if end != "right" and "bytes left" not in end] == []
        assert "bytes left" in ends[0]


@pytest.mark.parametrize("route", ROUTES)
def test_no_memory_of_the_device_on_one_rank(comm: mpicoll.Communicator, on: OnSimulated, route: str) -> None:
    """It alone raises, before data moves, and may try again: the others have waited for it."""
    x = laid_out(on, np.full((4, 3), comm.rank), "float32", "strided")
    if comm.rank == comm.size - 1:
        on.device.fail("allocation")
        with pytest.raises(DeviceError, match="for the call to work in"):
            comm.allreduce(x, out=x, algorithm=route)
    comm.allreduce(x, out=x, algorithm=route)
    assert (on.values(x) == sum(range(comm.size))).all()


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("what", ["copy", "kernel"])
@pytest.mark.parametrize("name", MOVING)
def test_work_that_fails(comm: mpicoll.Communicator, on: OnSimulated, name: str, what: str, route: str) -> None:
    """The call raises, or the stream reports it to whoever looks at the result."""
    ends = []
    for number in places(comm, on, what, name, route):
        fails, fresh = OnSimulated(delay=2e-4), mpicoll.Communicator()
        fails.device.fail(what, number)
        ends.append(ended(fresh, fails, name, route))
        if fresh.closed:
            with pytest.raises(StateError, match=f"its {name} ended midway"):
                fresh.allreduce(np.ones(1))
        comm.barrier()
    assert [end for end in ends if end != "right" and f"a {what} of" not in end] == []
    if what == "copy":
        assert "a copy of" in ends[0]  # the one that writes the input


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("route", ["staged", "ipc"])
def test_work_that_fails_on_one_rank_is_told_to_all(comm: mpicoll.Communicator, route: str) -> None:
    """Of a call in several pieces, and in the memory of peers. Nobody takes what was not sent for a result."""
    for rank in range(comm.size):
        on, fresh = OnSimulated(delay=2e-4), mpicoll.Communicator()
        x = on.array(np.arange(60.0), "float64")
        on.device.current().synchronize()
        if comm.rank == rank:
            on.device.fail("copy" if route == "staged" else "kernel", 1)
        with pytest.raises(DeviceFailure, match=f"allreduce: rank {rank}: .*failed"):
            fresh.allreduce(x, out=x, algorithm=route)
        assert "allreduce ended midway" in fresh.closed


@pytest.mark.mpi(min_size=2)
def test_memory_of_two_sorts(on: OnSimulated) -> None:
    """One rank has an array of the host. Checked calls say so on every rank."""
    for n in (4, 60):
        comm = mpicoll.Communicator(check="full", timeout=60)
        x, host = on.array(np.ones(n), "float64"), np.ones(n)
        assert (on.values(comm.allreduce(x)) == comm.size).all()
        words = rf"(?s)rank 0: allreduce sum of {n} float64\n.*float64 on simulated"
        with pytest.raises(MismatchError, match=words):
            comm.allreduce(host if comm.rank == 0 else x)


def test_a_device_that_the_mpi_does_not_know(comm: mpicoll.Communicator) -> None:
    on = OnSimulated(mpi=False)
    x = on.array(np.ones(4), "float64")
    expected = f"expected one that needs no MPI that takes memory of {on.device.name}, as 'staged'; given 'device'"
    with pytest.raises(DeviceError, match=expected):
        comm.allreduce(x, algorithm="device")
    with pytest.raises(ArgumentError, match="expected a schedule, as in device:ring; given device:native"):
        comm.allreduce(x, algorithm="device:native")
    assert (on.values(comm.allreduce(x)) == comm.size).all()


@pytest.mark.parametrize("route", ROUTES)
def test_an_array_is_dropped_at_once(comm: mpicoll.Communicator, route: str) -> None:
    """Its memory is used again only when the call is done with it."""
    on = OnSimulated(delay=1e-3)
    for i in range(20):
        results = [comm.allreduce(on.array(np.full(30, i + k), "float64"), algorithm=route) for k in range(3)]
        comm.allreduce(on.array(np.full(30, -1), "float64"), algorithm=route)
        assert [float(on.values(x)[0]) for x in results] == [comm.size * (i + k) for k in range(3)]


def held() -> int:
    """Bytes that calls hold. The last calls are also recorded, and compared by another thread."""
    rooms = ("arrays", "communicator", "devices", "fabrics", "routes", "transports")
    calls = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"*/mpicoll/{r}/*") for r in rooms])
    return sum(trace.size for trace in calls.traces)


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_nothing_leaks(comm: mpicoll.Communicator, route: str) -> None:
    """A thousand calls on the same arrays allocate nothing."""
    device = Simulated()
    short, long = device.array(np.ones(4)), device.array(np.ones(60))
    calls = 1000 if comm.size == 2 else 500

    def make(n: int) -> None:
        for i in range(n):
            x = (short, long)[i % 8 == 0]
            comm.allreduce(x, "max", out=x, algorithm=route)
        device.current().synchronize()

    make(50)
    gc.collect()
    counts = [device.counts[what] for what in ("allocation", "pinned", "open")]
    tracemalloc.start()
    make(20)
    before = held()
    make(calls)
    gc.collect()
    grown = held() - before
    tracemalloc.stop()
    assert [device.counts[what] for what in ("allocation", "pinned", "open")] == counts
    assert grown < 6_000, f"{grown} bytes after {calls} calls"
    assert short.get().tolist() == [1] * 4
