"""How much faster are collectives of arrays that lie in memory which the ranks share?

    mpicoll run -n 2 benchmarks/shared_arrays.py [COLLECTIVE ...]

Four ways take turns: the MPI's own call through mpi4py, mpicoll's call on ordinary arrays, the same by the algorithm
``cico``, and mpicoll's call on arrays that ``Communicator.empty`` has made. Each works on three sets of float32 arrays
in turn, whose inputs are written just before. The size is that of the longest array of the call. The figures are
medians in microseconds, of the slower rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.collectives import COLLECTIVES
from mpicoll.machine.cpu import fingerprint
from mpicoll.machine.library import library
from mpicoll.units import size_text

NAMES = ["allreduce", "reduce", "reduce_scatter", "bcast", "allgather", "gather", "scatter", "alltoall"]
SIZES = [1 << k for k in range(14, 27, 2)]
ROUNDS, UNTIMED, SETS = 6, 3, 3

Array = np.ndarray[Any, np.dtype[np.float32]]
Pair = tuple[Array, Array]
"""The input and the output of a call. In an allreduce and in a bcast they are one array."""
Way = tuple[list[Pair], Callable[[Array, Array], object]]


def bare(comm: MPI.Intracomm, name: str) -> Callable[[Array, Array], object]:
    """The MPI's own call. The root is rank 0."""
    return {
        "allreduce": lambda x, out: comm.Allreduce(MPI.IN_PLACE, x),
        "reduce": lambda x, out: comm.Reduce(x, out),
        "reduce_scatter": lambda x, out: comm.Reduce_scatter_block(x, out),
        "bcast": lambda x, out: comm.Bcast(x),
        "allgather": lambda x, out: comm.Allgather(x, out),
        "gather": lambda x, out: comm.Gather(x, out),
        "scatter": lambda x, out: comm.Scatter(x, out),
        "alltoall": lambda x, out: comm.Alltoall(x, out),
    }[name]


def ours(comm: mpicoll.Communicator, name: str, algorithm: str | None = None) -> Callable[[Array, Array], object]:
    """mpicoll's call."""
    method = getattr(comm, name)
    if name == "bcast":
        return lambda x, out: method(x, algorithm=algorithm)
    return lambda x, out: method(x, out=out, algorithm=algorithm)


def pairs(name: str, nbytes: int, size: int, empty: Callable[[int], Array]) -> list[Pair]:
    """Arrays of which the longest have so many bytes."""
    table, whole = COLLECTIVES[name], nbytes // 4 // size * size
    given, gotten = (
        whole if blocks == "p" or not table.by_rank else whole // size for blocks in (table.gives, table.gets)
    )
    made = []
    for _ in range(SETS):
        x = empty(given)
        made.append((x, x if name in ("allreduce", "bcast") else empty(gotten)))
    return made


def times(comm: mpicoll.Communicator, meeting: MPI.Intracomm, way: Way, calls: int) -> list[float]:
    """The seconds of some calls on this rank."""
    arrays, call = way
    found = []
    for i in range(UNTIMED + calls):
        x, out = arrays[i % SETS]
        x.fill(1.0)
        meeting.Barrier()
        start = perf_counter()
        call(x, out)
        found.append(perf_counter() - start)
    return found[UNTIMED:]


def measured(
    comm: mpicoll.Communicator, meeting: MPI.Intracomm, direct: MPI.Intracomm, name: str, nbytes: int
) -> list[float]:
    """The median of each of the four ways."""
    calls = max(4, min(60, (16 << 20) // nbytes))

    def empty(count: int) -> Array:
        return np.empty(count, np.float32)

    # A little longer: where arrays of one length are ordinary ones, shared ones are passed over for a while.
    others = pairs(name, nbytes + 64 * comm.size, comm.size, empty)
    shared = pairs(name, nbytes, comm.size, lambda count: comm.empty(count, np.float32))
    call = ours(comm, name)
    ways: list[Way] = [
        (pairs(name, nbytes, comm.size, empty), bare(direct, name)),
        (others, call),
        (others, ours(comm, name, "cico")),
        (shared, call),
    ]
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for way, mine in zip(ways, found, strict=True):
            mine += times(comm, meeting, way, calls)
    assert nbytes < 1 << 20 or comm.last_route == "shared"
    medians = []
    for mine in found:
        slowest = np.array(mine)
        meeting.Allreduce(MPI.IN_PLACE, slowest, op=MPI.MAX)
        medians.append(float(np.median(slowest)))
    return medians


def main() -> None:
    comm, meeting, direct = mpicoll.Communicator(), MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
    first = comm.zeros(1 << 20)
    comm.allreduce(first, out=first)  # from now on ranks say where their arrays lie
    if comm.rank == 0:
        print(f"{library()}, {comm.size} ranks, {fingerprint()}")
    for name in sys.argv[1:] or NAMES:
        gains = []
        if comm.rank == 0:
            print(f"{name:>14}{'MPI':>12}{'ordinary':>12}{'cico':>12}{'shared':>12}   times as fast: cico, shared")
        for nbytes in SIZES:
            medians = measured(comm, meeting, direct, name, nbytes)
            gains.append(medians[0] / np.array(medians[2:]))
            if comm.rank == 0:
                print(
                    f"{size_text(nbytes):>14}"
                    + "".join(f"{s * 1e6:12.1f}" for s in medians)
                    + "".join(f"{g:12.2f}" for g in gains[-1])
                )
        if comm.rank == 0:
            by_cico, where_they_lie = np.exp(np.mean(np.log(gains), axis=0))
            print(
                f"geometric means: cico {by_cico:.2f} times as fast as the MPI's own, shared {where_they_lie:.2f}\n",
                flush=True,
            )


main()
