"""How much faster is an all-reduce of arrays that lie in memory which the ranks share?

    mpicoll run -n 2 benchmarks/shared_arrays.py

Three ways take turns: the MPI's own all-reduce, mpicoll's of ordinary arrays, and mpicoll's of arrays that
``Communicator.empty`` has made. All work in place, on three arrays in turn that were written to just before. The
figures are medians in microseconds, of the slower rank.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.machine.cpu import fingerprint
from mpicoll.machine.library import library
from mpicoll.units import size_text

SIZES = [1 << k for k in range(14, 27, 2)]
ROUNDS, UNTIMED, ARRAYS = 6, 3, 3

Array = np.ndarray[Any, np.dtype[np.float32]]
Way = tuple[list[Array], Callable[[Array], object]]


def times(comm: mpicoll.Communicator, meeting: MPI.Intracomm, way: Way, calls: int) -> list[float]:
    """The seconds of some calls on this rank."""
    arrays, reduce = way
    found = []
    for i in range(UNTIMED + calls):
        x = arrays[i % ARRAYS]
        x.fill(1.0)
        meeting.Barrier()
        start = perf_counter()
        reduce(x)
        found.append(perf_counter() - start)
        assert x[0] == x[-1] == x[x.size // 2] == comm.size
    return found[UNTIMED:]


def main() -> None:
    comm, meeting, bare = mpicoll.Communicator(), MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
    gains = []
    if comm.rank == 0:
        print(f"{library()}, {comm.size} ranks, {fingerprint()}")
        print(f"{'':>10}{'MPI':>12}{'ordinary':>12}{'shared':>12}   times as fast")
    for nbytes in SIZES:
        n, calls = nbytes // 4, max(4, min(60, (16 << 20) // nbytes))
        ordinary = [np.empty(n, np.float32) for _ in range(ARRAYS)]
        # A little longer: where arrays of one length are ordinary ones, shared ones are passed over for a while.
        others = [np.empty(n + 16, np.float32) for _ in range(ARRAYS)]
        ways: dict[str, Way] = {
            "MPI": (ordinary, lambda x: bare.Allreduce(MPI.IN_PLACE, x)),
            "ordinary": (others, lambda x: comm.allreduce(x, out=x)),
            "shared": ([comm.empty(n, np.float32) for _ in range(ARRAYS)], lambda x: comm.allreduce(x, out=x)),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                found[name] += times(comm, meeting, way, calls)
        medians = {}
        for name, mine in found.items():
            slowest = np.array(mine)
            meeting.Allreduce(MPI.IN_PLACE, slowest, op=MPI.MAX)
            medians[name] = float(np.median(slowest))
        gains.append(medians["MPI"] / medians["shared"])
        if comm.rank == 0:
            print(
                f"{size_text(nbytes):>10}"
                + "".join(f"{s * 1e6:12.1f}" for s in medians.values())
                + f"{gains[-1]:12.2f}"
            )
    if comm.rank == 0:
        print(f"geometric mean: {np.exp(np.mean(np.log(gains))):.2f} times as fast as the MPI's own\n", flush=True)


main()
