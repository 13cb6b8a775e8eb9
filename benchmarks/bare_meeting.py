"""What does a short collective cost beyond what it must? Two ranks meet in C alone, and by calls from Python.

    mpicoll run -n 2 benchmarks/bare_meeting.py

`bare meeting in C`: each rank writes a line of a cache, and waits for the other one's. No barrier takes less. `call of
one rank`: a barrier and an all-reduce of a communicator of one rank, in which nobody waits. The ways take turns. A
figure is a median of five rounds in microseconds. Each row is a measurement of its own, because the machine changes:
at some times, the two cores are far apart. Needs a C compiler.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from timeit import Timer
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.machine.linux import cpu_name
from mpicoll.machine.mpi_library import library

ROWS, ROUNDS, CALLS = 6, 5, 20_000
SOURCE = """
#include <stdatomic.h>
#include <stdint.h>
typedef struct { _Alignas(128) _Atomic uint64_t at; } Line;
void meet(Line *lines, int rank, uint64_t first, long n) {
    for (uint64_t turn = first; turn < first + (uint64_t)n; turn++) {
        atomic_store_explicit(&lines[rank].at, turn, memory_order_release);
        while (atomic_load_explicit(&lines[!rank].at, memory_order_acquire) < turn) {}
    }
}
"""


def built(folder: str) -> Any:
    source, file = Path(folder, "meet.c"), Path(folder, "meet.so")
    source.write_text(SOURCE)
    subprocess.run(["cc", "-std=c11", "-O2", "-shared", "-fPIC", source, "-o", file], check=True)
    return ctypes.CDLL(str(file)).meet


class Meeting:
    """Meetings in memory that both ranks have. Collective."""

    def __init__(self, world: Any, meet: Any) -> None:
        self.window = MPI.Win.Allocate_shared(4096 * (world.rank == 0), 1, comm=world)
        memory = np.frombuffer(self.window.Shared_query(0)[0], np.uint8)  # type: ignore[call-overload]
        if world.rank == 0:
            memory[:] = 0
        world.Barrier()
        address = (memory.ctypes.data + 127) // 128 * 128
        self.call = partial(meet, ctypes.c_void_p(address), world.rank)
        self.turn = 1

    def time(self) -> float:
        start = time.perf_counter()
        self.call(ctypes.c_uint64(self.turn), ctypes.c_long(CALLS))
        self.turn += CALLS
        return time.perf_counter() - start


def main() -> None:
    world, comm = MPI.COMM_WORLD, mpicoll.Communicator()
    if comm.size != 2:
        sys.exit(f"expected 2 ranks: mpicoll run -n 2; given {comm.size}")
    alone = mpicoll.Communicator(MPI.COMM_SELF)
    known = {"world": world, "comm": comm, "alone": alone, "x": np.zeros(2, np.float32), "IN_PLACE": MPI.IN_PLACE}

    def called(call: str) -> Callable[[], float]:
        return partial(Timer(call, globals=known).timeit, CALLS)

    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "bare meeting in C": Meeting(world, built(folder)).time,
            "call of one rank": called("alone.barrier()"),
            "mpi4py barrier": called("world.Barrier()"),
            "mpicoll barrier": called("comm.barrier()"),
            "call of one rank, allreduce": called("alone.allreduce(x, out=x)"),
            "mpi4py allreduce": called("world.Allreduce(IN_PLACE, x)"),
            "mpicoll allreduce": called("comm.allreduce(x, out=x)"),
        }
        for _ in range(ROWS):
            found: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(ROUNDS):
                for name, way in ways.items():
                    comm.barrier()
                    found[name].append(way() / CALLS * 1e6)
            if comm.rank == 0:
                print("  ".join(f"{name} {median(each):.3f}" for name, each in found.items()), flush=True)
            time.sleep(0.3)
    if comm.rank == 0:
        print(f"# {cpu_name()}, {library()}; all-reduces of 8 bytes")


if __name__ == "__main__":
    main()
