"""The simulated device: what it refuses, what it delays, what it lets fail. Without ranks."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import mpicoll
from mpicoll.arrays.buffers import as_buffer
from mpicoll.errors import ArgumentError, DeviceError, DeviceFailure
from tests.devices.on import ROUTES
from tests.devices.simulated import Simulated
from tests.devices.simulated_queue import Costs, SimulatedEvent


@pytest.fixture
def device() -> Simulated:
    return Simulated()


def view(device: Simulated, x: Any) -> Any:
    return device.view(as_buffer(x, "test", "x"))


def test_the_host_cannot_touch_its_memory(device: Simulated) -> None:
    x = device.array(np.ones(3))
    with pytest.raises(TypeError, match=f"lies on {device.name}: only the streams of that device can touch it"):
        np.asarray(x)
    with pytest.raises(TypeError):
        memoryview(x)  # type: ignore[arg-type]
    touch = "import numpy as np; from tests.devices.simulated import Simulated; print(Simulated().array(1.0).layout)"
    assert subprocess.run([sys.executable, "-c", touch], check=False).returncode == -signal.SIGSEGV


def test_a_stream_works_later_and_in_order(device: Simulated) -> None:
    x, y, gate = device.array(np.zeros(4)), device.array(np.zeros(4)), SimulatedEvent()
    address = as_buffer(y, "test", "x").address
    device.current().wait_for(gate)
    for i in range(5):
        x.set(np.full(4, i))
        device.current().copy(view(device, y), view(device, x))
    assert device.current().touches(address, address + 32)
    gate.passed(None)
    assert y.get().tolist() == [4] * 4
    assert not device.current().touches(address, address + 32)


def test_memory_is_used_after_it_was_given_back(device: Simulated) -> None:
    x = device.array(np.zeros(4))
    place = view(device, x)
    del x
    device.current().synchronize()
    device.current().copy(view(device, np.zeros(4)), place)
    with pytest.raises(DeviceFailure, match="memory was used after it was given back"):
        device.current().synchronize()


def test_a_failed_copy_stops_its_stream_and_those_that_wait_for_it(device: Simulated) -> None:
    x, other = device.array(np.zeros(4)), device.new_stream()
    device.current().synchronize()
    device.fail("copy", 2)
    for value in (1, 2, 3):
        x.set(np.full(4, value))
    other.wait_for(device.current().record())
    for stream in (device.current(), other):
        with pytest.raises(DeviceFailure, match="a copy of 32 bytes failed"):
            stream.synchronize()
    with device.using(device.new_stream()):
        assert x.get().tolist() == [1] * 4


def test_mpi_is_not_given_what_is_pending(device: Simulated) -> None:
    x, gate = device.array(np.zeros(4)), SimulatedEvent()
    address = as_buffer(x, "test", "x").address
    device.current().wait_for(gate)
    x.set(np.ones(4))
    with pytest.raises(DeviceFailure, match="MPI was given memory on which work is pending"):
        device.for_mpi(address, 32)
    gate.passed(None)
    device.current().synchronize()
    assert device.for_mpi(address, 32) != address


# -- ranks that are threads -------------------------------------------------------------------------------------------


def test_ranks_that_are_threads() -> None:
    device = Simulated(Costs(delay=1e-3))

    def rank(comm: mpicoll.Communicator) -> list[float]:
        results = []
        for route in ("staged", "ipc", None):
            x = device.array(np.full(50, comm.rank + 1.0))
            total = comm.allreduce(x, algorithm=route)
            results.append(total.get()[-1])
        with pytest.raises(DeviceError, match=r"algorithm: expected 'staged' or 'ipc' between threads; given 'device'"):
            comm.allreduce(x, algorithm="device")
        return results

    with mpicoll.threads(3) as ranks:
        assert ranks.run(rank) == [[6.0] * 3] * 3


def test_wrong_arguments() -> None:
    device, other = Simulated(mpi=False), Simulated()

    def rank(comm: mpicoll.Communicator) -> None:
        x, host = device.array(np.full(4, 5.0)), np.full(4, 5.0)
        for route in ROUTES:
            with pytest.raises(ArgumentError, match=f"allreduce: algorithm: expected .*; given '{route}'"):
                comm.allreduce(host, algorithm=route)
        with pytest.raises(DeviceError, match=f"out: expected memory on {device.name}, where x is; given cpu"):
            comm.allreduce(x, out=host)
        with pytest.raises(DeviceError, match=f"out: expected memory on cpu, where x is; given {device.name}"):
            comm.allreduce(host, out=x)
        with pytest.raises(DeviceError, match=f"where x is; given {other.name}"):
            comm.allreduce(x, out=other.array(host))
        with pytest.raises(ArgumentError, match="x: expected an array that can be written to"):
            comm.allreduce(it := x.read_only(), out=it)
        with pytest.raises(ArgumentError, match=r"out: .*not overlap x's"):
            comm.allreduce(x[:3], out=x[1:])
        assert (x.get() == 5).all()

    with mpicoll.threads(1) as ranks:
        ranks.run(rank)
