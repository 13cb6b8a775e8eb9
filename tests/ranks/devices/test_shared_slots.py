"""Calls on device memory go through memory that the ranks share, where they can: the host's route need not copy."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.fabrics.routes.devices import staged
from mpicoll.machine import blocks
from tests.devices.checks import MOVING, check
from tests.devices.on import On, OnSimulated
from tests.devices.simulated_queue import Costs
from tests.sharing import NEEDED

pytestmark = [*NEEDED, pytest.mark.first_mpi]
LENGTH = 40_001
"""Elements of a vector, or of a block: several pieces, of which all but the last are long enough."""


@pytest.fixture(autouse=True)
def short_pieces(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "PIECE", comm.size * (32 << 10))


def summed(comm: mpicoll.Communicator, on: On, value: float, algorithm: str | None = "staged") -> str:
    """The route of an allreduce, whose result is right."""
    result = comm.allreduce(on.array(np.full(LENGTH, value + comm.rank), "float64"), algorithm=algorithm)
    assert np.all(on.values(result) == comm.size * value + sum(range(comm.size)))
    return comm.last_route


@pytest.mark.parametrize("name", MOVING)
def test_every_collective(comm: mpicoll.Communicator, on: On, name: str) -> None:
    for dtype, op in (("float32", "sum"), ("bfloat16", "avg" if COLLECTIVES[name].prefix is None else "sum")):
        for root in range(comm.size):
            check(comm, on, name, "staged", dtype, op, (LENGTH,), "plain", root)
    assert ("shared" in comm.last_route) == (COLLECTIVES[name].prefix is None)


def test_calls_without_a_pause(comm: mpicoll.Communicator, on: On) -> None:
    """No call writes to a slot that the device, or another rank, still reads."""
    results = [comm.allreduce(on.array(np.full(LENGTH, float(i)), "float32"), algorithm="staged") for i in range(50)]
    assert "shared" in comm.last_route
    assert [float(on.values(x)[-1]) for x in results] == [i * comm.size for i in range(50)]


def test_what_is_named_is_taken(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    on = OnSimulated()
    summed(comm, on, 1)
    assert "shared" in summed(comm, on, 2)
    assert summed(comm, on, 3, "staged:native") == "staged:native"
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:ring")
    another = mpicoll.Communicator()
    assert [summed(another, on, i) for i in range(3)] == ["staged:ring"] * 3
    another.free()


def test_memory_that_cannot_be_pinned(comm: mpicoll.Communicator) -> None:
    """Where one rank has no such memory for one of its slots, all ranks take the host's other route."""
    for number in (1, 2, 3):
        on, fresh = OnSimulated(), mpicoll.Communicator()
        if comm.rank == comm.size - 1:
            on.device.fail("pin", number)
        assert "staged:shared" not in [summed(fresh, on, value) for value in range(5)]
        fresh.free()


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "0")
    comm, on = mpicoll.Communicator(), OnSimulated()
    assert not [value for value in range(3) if "shared" in summed(comm, on, value)]
    assert on.device.counts["pin"] == 0
    comm.free()


def test_what_is_freed_is_given_back_at_once(comm: mpicoll.Communicator) -> None:
    """Without Python's collector, which a training loop may have turned off."""
    on = OnSimulated()
    gc.collect()
    gc.disable()
    try:
        for device in (False, True):
            fresh = mpicoll.Communicator()
            x = np.ones(LENGTH)
            for _ in range(2):
                fresh.allreduce(on.array(x, "float64") if device else x, algorithm="staged" if device else None)
            devices = fresh._engine.devices
            left = [weakref.ref(each) for each in (devices, *devices._kept.values())]
            fresh.free()
            del fresh, devices
            assert [each() for each in left] == [None] * len(left)
    finally:
        gc.enable()


def test_half_of_the_blocks_is_the_program_s(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    on, there = OnSimulated(), sum(own.lasts for own in blocks.known)
    monkeypatch.setattr(blocks, "MOST", 2 * there)
    monkeypatch.setattr(staged, "MOST", 2 * there)
    taken = [blocks.allocate(own.nbytes) for own in blocks.known if own.lasts]  # free ones would serve
    assert "shared" not in summed(comm, on, 1)
    assert blocks.allocate(blocks.LEAST) is not None
    del taken


def test_slots_are_free_when_the_device_is_done(comm: mpicoll.Communicator) -> None:
    """The memory of a communicator that is gone is another array's, and the device may still be at work there."""
    on, fresh = OnSimulated(), mpicoll.Communicator()
    x = on.array(np.full(8000, 1.0), "float32")
    fresh.allreduce(x, out=x, algorithm="staged")
    [slot] = fresh._engine.devices._kept[on.device.name].ring._slots
    address, nbytes = slot.memory.ctypes.data, slot.memory.nbytes
    on.device.costs = Costs(latency=0.3)
    fresh.allreduce(x, out=x, algorithm="staged")
    fresh.free()
    del fresh, slot
    gc.collect()
    taken = [blocks.allocate(nbytes)]
    while taken[-1] is not None and taken[-1].ctypes.data != address:
        taken.append(blocks.allocate(nbytes))
    assert taken[-1] is not None
    taken[-1][:] = 7
    assert np.all(on.values(x) == comm.size**2)
