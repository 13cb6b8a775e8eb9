"""Faults: one rank frees a communicator that others use, or a call fails on it alone."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType

import numpy as np

import mpicoll
from tests.jobs.programs.begun import long, x
from tests.jobs.programs.declared import Faults
from tests.jobs.titles import DIFFERENT

FAULTS = Faults()
fault = FAULTS.declare


@fault(
    "one rank frees it",
    "mpicoll: a rank has freed the communicator, and others still use it",
    "has not arrived and has freed the communicator",
    seconds=600,
)
def one_rank_frees_it(comm: mpicoll.Communicator) -> None:
    if comm.rank == 1:
        comm.free()
        time.sleep(600)


@fault("a handler ends a call midway", "a rank has finished, and others wait for it", seconds=600)
def a_handler_ends_a_call_midway(comm: mpicoll.Communicator) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        raise InterruptedError("of a handler")

    if comm.rank == 1:
        signal.signal(signal.SIGALRM, handler)
        try:
            threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGALRM)).start()
            # A schedule's steps return to Python, and a handler can run between them.
            for _ in range(1 << 20):
                comm.allreduce(long, algorithm="ring")
        except InterruptedError:
            sys.exit()
    else:
        for _ in range(1 << 20):
            comm.allreduce(long, algorithm="ring")


@fault(
    "a device fails on one rank",
    "mpicoll: a call has failed on a rank, and others wait for it. The job ends (communicator of ranks 0-2)",
    "rank 1      call 3: allreduce sum of 6 float64 on simulated",
    "cannot use the communicator any more",
    seconds=600,
)
def a_device_fails_on_one_rank(comm: mpicoll.Communicator) -> None:
    from tests.devices.simulated import Simulated

    device = Simulated()
    on_device = device.array(x)
    device.current().synchronize()
    if comm.rank == 1:
        device.fail("copy")
    try:
        comm.allreduce(on_device)
    except mpicoll.errors.DeviceFailure:
        time.sleep(600)


@fault(
    "a device has no memory on one rank", "DeviceError: allreduce: x: expected", "for the call to work in", seconds=600
)
def a_device_has_no_memory_on_one_rank(comm: mpicoll.Communicator) -> None:
    from tests.devices.simulated import Simulated

    device = Simulated()
    on_device = device.array(np.ones((6, 2)))[:, 0]
    if comm.rank == 1:
        device.fail("allocation")
    comm.allreduce(on_device, out=on_device)


@fault("another sort of memory on one rank", DIFFERENT, "131072 float64 on simulated", "rank 1", seconds=600)
def another_sort_of_memory_on_one_rank(comm: mpicoll.Communicator) -> None:
    from tests.devices.simulated import Simulated

    device = Simulated()
    comm.allreduce(long if comm.rank == 1 else device.array(long))  # it may return, with wrong data
    time.sleep(600)


@fault("two threads", "StateError: allreduce sum of 6 float64: this communicator is in another call now", seconds=600)
def two_threads(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        threading.Thread(target=comm.allreduce, args=[x], daemon=True).start()
        while not comm._engine.recorder.under_way:
            time.sleep(0.01)
        comm.allreduce(x)
    time.sleep(600)
