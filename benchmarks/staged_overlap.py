"""How much of the time of a staged call overlaps, on a simulated device with stated costs.

    PYTHONPATH=. mpicoll run -n 2 benchmarks/staged_overlap.py [--rate 2e9] [--latency 1e-5] [--sizes 16M,64M]

A staged call copies out, lets MPI work, and copies in. If nothing overlapped, it would take the sum of the three. If
everything did, it would take as long as the slowest of them. Each is measured by itself, in the same pieces.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import mpicoll
from mpicoll.arrays.buffers import as_buffer
from mpicoll.communicator.base import engine_of
from mpicoll.fabrics.routes.devices.staged import PIECE
from mpicoll.units import nbytes as bytes_of
from tests.devices.simulated import Simulated
from tests.devices.simulated_array import SimulatedArray
from tests.devices.simulated_queue import Costs

REPEATS = 7


def seconds(comm: mpicoll.Communicator, call: Callable[[], object]) -> float:
    """The shortest of the slowest rank's times. The first call binds, and does not count."""
    call()
    times = []
    for _ in range(REPEATS):
        comm.barrier()
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return float(np.min(np.max(comm.allgather_object(times), axis=0)))


def copies(device: Simulated, x: SimulatedArray, host: np.ndarray, out: bool) -> Callable[[], None]:
    """Copy the whole array out, or in, in the pieces of a staged call."""
    pairs = []
    for start in range(0, host.size, PIECE // host.itemsize):
        piece = slice(start, start + PIECE // host.itemsize)
        views = device.view(as_buffer(host[piece], "copy", "host")), device.view(as_buffer(x[piece], "copy", "x"))
        pairs.append(views if out else views[::-1])

    def run() -> None:
        for target, source in pairs:
            device.current().copy(target, source)
        device.current().synchronize()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1e9, help="bytes a second that a copy takes (1e9)")
    parser.add_argument("--latency", type=float, default=1e-5, help="seconds that each copy takes to begin (1e-5)")
    parser.add_argument("--sizes", default="16M,64M", help="bytes of the vector (16M,64M)")
    given = parser.parse_args()
    comm, device = mpicoll.Communicator(), Simulated(Costs(given.latency, given.rate))
    if comm.rank == 0:
        library = engine_of(comm).fabric.info.library
        print(f"{comm.size} ranks, {library}: copies at {given.rate:g} B/s, {given.latency:g} s to begin")
        print(
            f"{'bytes':>10} {'out ms':>8} {'MPI ms':>8} {'in ms':>8} {'staged ms':>10} {'of slowest':>11} {'of sum':>7}"
        )
    for nbytes in (bytes_of(text) or PIECE for text in given.sizes.split(",")):
        host = np.zeros(nbytes // 4, np.float32)
        x = device.array(host)
        out, into = (seconds(comm, copies(device, x, host, o)) for o in (True, False))
        step = PIECE // host.itemsize
        pieces = [host[i : i + step] for i in range(0, host.size, step)]
        mpi = seconds(comm, lambda pieces=pieces: [comm.allreduce(p, out=p) for p in pieces])  # type: ignore[misc]

        def staged(x: SimulatedArray = x) -> None:
            comm.allreduce(x, out=x, algorithm="staged")
            device.current().synchronize()

        took, parts = seconds(comm, staged), (out, mpi, into)
        if comm.rank == 0:
            times = " ".join(f"{t * 1e3:8.2f}" for t in parts)
            print(f"{nbytes:10} {times} {took * 1e3:10.2f} {took / max(parts):11.2f} {took / sum(parts):7.2f}")
    comm.free()


if __name__ == "__main__":
    main()
