"""How fast could an all-reduce between 2 ranks of a node be? This measures its additions and copies alone.

    mpicoll run -n 2 benchmarks/memory_floor.py

Three ways take turns:

- the MPI's own all-reduce;
- the simplest all-reduce through memory that the ranks share: copy the vector there, meet, and add the other vector;
- what no way can avoid: to add half of the vector and to copy the other half, in a rank's own caches and without
  the other rank.

The figures are medians in microseconds, of the slower rank.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

SIZES = (256 << 10, 1 << 20, 4 << 20)
CALLS, UNTIMED = 400, 50

Array = np.ndarray[Any, np.dtype[np.float32]]


def ways(comm: MPI.Intracomm, n: int) -> dict[str, Callable[[Array], object]]:
    """The three ways. Each but the last all-reduces n elements in place."""
    window = MPI.Win.Allocate_shared(4 * n, 4, comm=comm)
    memory: list[Any] = [window.Shared_query(r)[0] for r in (comm.rank, 1 - comm.rank)]
    mine, theirs = (np.frombuffer(each, np.float32) for each in memory)
    half, other = np.ones(n, np.float32)[: n // 2], np.ones(n, np.float32)[n // 2 :]

    def shared(x: Array) -> None:
        np.copyto(mine, x)
        comm.Barrier()
        np.add(x, theirs, out=x)
        comm.Barrier()

    def floor(x: Array) -> None:
        np.add(x[: n // 2], half, out=x[: n // 2])
        np.copyto(x[n // 2 :], other)

    return {"MPI": lambda x: comm.Allreduce(MPI.IN_PLACE, x), "shared memory, barely": shared, "floor": floor}


def main() -> None:
    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        print(MPI.Get_library_version().split(",")[0].splitlines()[0])
    for nbytes in SIZES:
        named = ways(comm, nbytes // 4)
        vectors = [np.empty(nbytes // 4, np.float32) for _ in range(4)]
        times: dict[str, list[float]] = {name: [] for name in named}
        for turn in range(CALLS):
            for name, way in named.items():
                x = vectors[turn % len(vectors)]
                x.fill(1)
                comm.Barrier()
                began = perf_counter()
                way(x)
                times[name].append(perf_counter() - began)
                assert name == "floor" or (x == 2).all()
        for name, seconds in times.items():
            slower = comm.allreduce(float(np.median(seconds[UNTIMED:])), MPI.MAX)
            if comm.rank == 0:
                print(f"{nbytes >> 10:>6} KiB  {name:22} {slower * 1e6:8.1f}")


if __name__ == "__main__":
    main()
