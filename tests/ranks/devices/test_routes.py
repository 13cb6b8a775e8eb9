"""Every collective on the memory of a device, by every route: what the host's oracle says, and inputs only read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll import algorithms
from mpicoll.errors import ArgumentError
from tests.arrays import OnAGpu
from tests.devices.checks import MOVING, by, check, check_uneven, same
from tests.devices.on import LAYOUTS, ROUTES, On, OnSimulated, laid_out, routes_of
from tests.devices.simulated import Simulated
from tests.ranks.random_calls import UNEVEN


@pytest.mark.slow
@by(*ROUTES)
@pytest.mark.parametrize("name", MOVING)
def test_every_layout_and_size(comm: mpicoll.Communicator, on: On, name: str, route: str) -> None:
    for layout in LAYOUTS:
        for shape in ((), (0,), (1,), (3, 7), (101,)):
            for dtype in ("float32", "bfloat16"):
                check(comm, on, name, route, dtype, "sum", shape, layout, comm.size - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", MOVING)
def test_by_mpi_alone(comm: mpicoll.Communicator, on: On, name: str) -> None:
    """What MPI libraries can reduce."""
    if not on.device.known_to_mpi():
        pytest.skip("this MPI takes no memory of the device")
    for layout in LAYOUTS:
        for dtype, op in (("float32", "sum"), ("float64", "prod"), ("int32", "max")):
            for shape in ((), (0,), (3, 7), (101,)):
                check(comm, on, name, "native", dtype, op, shape, layout, comm.size - 1)


@by(*ROUTES)
@pytest.mark.parametrize("collective", UNEVEN)
def test_uneven_blocks(comm: mpicoll.Communicator, on: On, collective: str, route: str) -> None:
    for _ in range(2):
        for root in range(comm.size):
            check_uneven(comm, on, collective, route, root)


@pytest.mark.slow
@by("staged", "device")
@pytest.mark.parametrize("name", MOVING)
def test_every_schedule(comm: mpicoll.Communicator, on: On, name: str, route: str) -> None:
    """The messages of a route are carried out by any schedule."""
    for a in algorithms.algorithms(name):
        check(comm, on, name, f"{route}:{a.name}", "float32", "avg" if name != "scan" else "sum", (20,), "plain")


@by("staged")
def test_an_algorithm_of_the_host_goes_through_the_host(comm: mpicoll.Communicator, on: On, route: str) -> None:
    for algorithm in (None, "native", "ring", "exchange", f"{route}:ring"):
        x = on.array(np.arange(30.0), "float64")
        same(on.values(comm.allreduce(x, algorithm=algorithm)), np.arange(30.0) * comm.size, str(algorithm))
    for wrong in ("staged:rings", "ipcs", "device:native:ring"):
        with pytest.raises(ArgumentError, match="allreduce: algorithm: expected None or one of"):
            comm.allreduce(on.array(np.ones(3), "float64"), algorithm=wrong)


@pytest.mark.slow
def test_long_vectors(comm: mpicoll.Communicator, on: On) -> None:
    """Of many real pieces, and with memory that the ranks share."""
    n = 2_500_001
    for route in routes_of(on):
        for op in ("sum", "max"):
            x = on.array(np.arange(n) % 1000 + comm.rank, "float32")
            found = on.values(comm.allreduce(x, op, algorithm=route))
            added = sum(range(comm.size)) + np.arange(n) % 1000 * (comm.size - 1) if op == "sum" else comm.size - 1
            same(found, (np.arange(n) % 1000 + added).astype(np.float32), f"{op} by {route}")


def test_the_stream_of_another_library_is_followed(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each call, also in one that is repeated."""
    on, followed = OnSimulated(delay=5e-4), list[int]()

    def follow(device: Simulated, stream: int) -> bool:
        followed.append(stream)
        return True

    monkeypatch.setattr(Simulated, "follow", follow)
    x = on.array(np.full(9, comm.rank + 1.0), "float64")
    given: Any = OnAGpu(x, **{**x.__cuda_array_interface__, "stream": 7})
    for i in range(3):
        comm.allreduce(given, "max", out=given)
        assert followed == [7] * (i + 1)
    comm.iallreduce(given, "max", out=given).wait()
    assert followed[3:]
    peer = comm.rank ^ 1
    if peer < comm.size:
        before = len(followed)
        comm.sendrecv(given, peer, out=on.array(np.zeros(9), "float64"))
        assert len(followed) == before + 1
    assert on.values(x).tolist() == [comm.size] * 9


def test_messages(comm: mpicoll.Communicator, on: On) -> None:
    """Device to device and device to host, with gaps too."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for layout in LAYOUTS:
        values = np.arange(12.0).reshape(3, 4)
        x, y = laid_out(on, values + comm.rank, "float64", layout), laid_out(on, values * 0, "float64", layout)
        comm.sendrecv(x, after, out=y, source=before)
        same(on.values(y), values.ravel() + before, layout)
        host = np.zeros((3, 4))
        sent = comm.isend(x, after)
        comm.recv(host, before)
        sent.wait()
        same(host, values.ravel() + before, layout)
