"""Threads as ranks on the simulated device: the routes that they have there, and wrong arguments."""

from __future__ import annotations

import numpy as np
import pytest

import mpicoll
from mpicoll.errors import ArgumentError, DeviceError
from tests.devices.on import ROUTES
from tests.devices.simulated import Simulated
from tests.devices.simulated_queue import Costs


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
