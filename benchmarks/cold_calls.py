"""What does a call cost in Python after a program has worked on long arrays?

    mpicoll run -n 2 benchmarks/cold_calls.py cold.json

Each rank fills two arrays, as a program or a benchmark does between its calls. Then all ranks meet, and an all-reduce
of 8 bytes is timed. Its data fit anywhere, so the difference between two ways is that of their instructions and of what
they read besides. The longer the arrays are, the less of that is still in the caches. Three ways take turns: the MPI's
own call through mpi4py, with its arguments made before too, and mpicoll's. The figures are medians in
microseconds, of the slowest rank. The file has how much longer mpicoll's call took.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.machine.linux import cpu_name
from mpicoll.machine.mpi_library import library
from mpicoll.units import size_text

SIZES = [8 << k for k in range(0, 24, 4)] + [32 << 20]
"""Bytes of each of the arrays that are filled."""


def main() -> None:
    comm, meeting, direct = mpicoll.Communicator(), MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
    x = np.zeros(2, np.float32)
    made = [x, 2, MPI.FLOAT]
    ways: dict[str, Callable[[], object]] = {
        "mpi4py": lambda: direct.Allreduce(MPI.IN_PLACE, x),
        "made before": lambda: direct.Allreduce(MPI.IN_PLACE, made),
        "mpicoll": lambda: comm.allreduce(x, out=x),
    }
    longer = {}
    if comm.rank == 0:
        print(f"{library()}, {comm.size} ranks, {cpu_name()}")
        print(f"{'filled':>8}{''.join(f'{way:>14}' for way in ways)}")
    for nbytes in SIZES:
        filled = np.empty((2, nbytes // 4), np.float32)
        found = np.empty((len(ways), max(60, min(600, (64 << 20) // nbytes))))
        for i in range(found.shape[1]):
            for way, call in enumerate(ways.values()):
                filled.fill(i)
                x.fill(1.0)
                meeting.Barrier()
                start = perf_counter()
                call()
                found[way, i] = (perf_counter() - start) * 1e6
        meeting.Allreduce(MPI.IN_PLACE, found, op=MPI.MAX)
        medians = dict(zip(ways, np.median(found, axis=1).tolist(), strict=True))
        longer[nbytes] = medians["mpicoll"] - medians["mpi4py"]
        if comm.rank == 0:
            print(f"{size_text(nbytes):>8}{''.join(f'{us:14.2f}' for us in medians.values())}", flush=True)
    if comm.rank == 0 and sys.argv[1:]:
        with open(sys.argv[1], "w") as file:
            json.dump({"mpi": library(), "ranks": comm.size, "longer_us": longer}, file)


main()
