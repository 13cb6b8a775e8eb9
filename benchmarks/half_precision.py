"""How fast is an all-reduce of 16-bit floats, compared with float32 at equal bytes?

Messages carry 16 bits for each value, and mpicoll does the arithmetic.

    mpicoll run -n 2 benchmarks/half_precision.py > benchmarks/records/half-precision-2ranks-openmpi.txt

All cases take turns in one job. The figures are the minimum and the median of the microseconds a call takes on the
slowest rank. Beside both are the bytes a second, relative to float32 by the MPI's own all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
from mpi4py import MPI

import mpicoll
from mpicoll.bench.session import Session, environment

SIZES = (1 << 20, 16 << 20)
SHARED = "shared"
CASES = (
    ("float32", "native"),
    ("bfloat16", "default"),
    ("float16", "default"),
    ("bfloat16", "ring"),
    ("float16", "ring"),
    ("bfloat16", "bine"),
    ("float16", "bine"),
    ("float32", SHARED),
    ("bfloat16", SHARED),
    ("float16", SHARED),
)
"""Each dtype, and the algorithm: the one that mpicoll chooses by default, there and for tensors in shared memory."""
TURNS, SECONDS = 40, 0.01
"""The turns of each case, and about how long one turn takes."""


def main() -> None:
    """Measure. Rank 0 prints."""
    world = MPI.COMM_WORLD
    comm = mpicoll.Communicator(world)
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    about = environment(Session(world, node, "cpu"))
    if world.rank == 0:
        print(f"{about['mpi']}, {world.size} ranks, torch {torch.__version__}, {about['cpu']}")
        print(f"{'bytes':>9} {'dtype':9} {'algorithm':10} {'min':>8} {'median':>8}  of float32")
    for nbytes in SIZES:
        measure(world, comm, nbytes)


def measure(world: MPI.Intracomm, comm: mpicoll.Communicator, nbytes: int) -> None:
    calls = [call(comm, dtype, algorithm, nbytes) for dtype, algorithm in CASES]
    times: list[list[float]] = [[] for _ in CASES]
    for _ in range(TURNS + 1):
        for run, mine in zip(calls, times, strict=True):
            repeat = world.bcast(max(1, int(SECONDS / min(mine, default=SECONDS))))
            world.Barrier()
            start = perf_counter()
            for _ in range(repeat):
                run()
            mine.append(world.allreduce((perf_counter() - start) / repeat, MPI.MAX))
    if world.rank == 0:
        # The first turn does not count: it binds plans and touches memory.
        found = [(min(t[1:]), float(np.median(t[1:]))) for t in times]
        for (dtype, algorithm), (least, middle) in zip(CASES, found, strict=True):
            us = f"{least * 1e6:8.0f} {middle * 1e6:8.0f}"
            of_float32 = f"{found[0][0] / least:5.2f} {found[0][1] / middle:5.2f}"
            print(f"{nbytes:9} {dtype:9} {algorithm:10} {us}  {of_float32}")


def call(comm: mpicoll.Communicator, dtype: str, algorithm: str, nbytes: int) -> Callable[[], object]:
    kind = getattr(torch, dtype)
    x = torch.zeros(nbytes // kind.itemsize, dtype=kind)
    if algorithm == SHARED:
        x = torch.from_numpy(comm.zeros(nbytes, np.uint8)).view(kind)
    chosen = None if algorithm in ("default", SHARED) else algorithm
    return lambda: comm.allreduce(x, out=x, algorithm=chosen)


if __name__ == "__main__":
    main()
