"""How much faster are collectives of arrays that lie in memory which the ranks share?

    mpicoll run -n 2 benchmarks/shared_arrays.py [--in-a-row] [COLLECTIVE ...]

Four ways take turns: the MPI's own call through mpi4py, mpicoll's call on ordinary arrays, the same by the algorithm
``node``, and mpicoll's call on arrays that ``Communicator.empty`` has made. Collectives that only move data have a
fifth one, "copy": each rank copies its result from where the other ranks' inputs lie, and waits for nobody. Where all
ranks get results, nobody can do with less. In a bcast and a gather, ranks that get none can help the others. Each works
on three sets of float32 arrays in turn. The size is that of the longest array of the call. The figures are medians in
microseconds, of the slower rank.

Each call is timed by itself: the inputs are written just before, and the ranks meet in a barrier of the MPI's. Where
ranks take turns on cores, they leave this barrier one after another, and each one's turn counts. So there is
``--in-a-row``, too: many calls follow each other, and their whole time counts. Inputs are written once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.machine.linux import cpu_name
from mpicoll.machine.mpi_library import library
from mpicoll.units import size_text

NAMES = ["allreduce", "reduce", "reduce_scatter", "bcast", "allgather", "gather", "scatter", "alltoall"]
COPYING = NAMES[3:]
SIZES = [1 << k for k in (14, 16, 18, 20, 22, 24, 25, 26)]
ROUNDS, UNTIMED, SETS = 6, 3, 3
MORE = 5
"""So many times as many calls follow each other as are timed one by one."""

Array = np.ndarray[Any, np.dtype[np.float32]]
Pair = tuple[Array, Array]
"""The input and the output of a call. In an allreduce and in a bcast they are one array."""
Bound = tuple[Array, Callable[[], object]]
"""The input of a call, and the call on its arrays."""


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


def lengths(name: str, nbytes: int, size: int) -> tuple[int, int]:
    """How many elements the input and the output have, of which the longer has at least so many bytes."""
    table, whole = COLLECTIVES[name], math.ceil(nbytes / 4 / size) * size
    given, gotten = (
        whole if blocks == "p" or not table.by_rank else whole // size for blocks in (table.gives, table.gets)
    )
    return given, gotten


def pair(name: str, lengths: tuple[int, int], empty: Callable[[int], Array]) -> Pair:
    x = empty(lengths[0])
    return x, x if name in ("allreduce", "bcast") else empty(lengths[1])


def on(made: Pair, call: Callable[[Array, Array], object]) -> Bound:
    return made[0], partial(call, *made)


def copying(comm: mpicoll.Communicator, name: str, lengths: tuple[int, int]) -> Bound:
    """The copies that a collective cannot do without, from arrays that all ranks can read. The root is rank 0."""
    inputs, out = comm.shared(lengths[0], np.float32), comm.empty(lengths[1], np.float32)

    def blocks(x: Array) -> Array:
        return x.reshape(comm.size, -1)

    match name:
        case "bcast":
            moves = [(inputs[comm.rank], inputs[0])] if comm.rank else []
        case "gather" if comm.rank:
            moves = []
        case "gather" | "allgather":
            moves = [*zip(blocks(out), inputs, strict=True)]
        case "scatter":
            moves = [(out, blocks(inputs[0])[comm.rank])]
        case _:
            moves = [*zip(blocks(out), (blocks(x)[comm.rank] for x in inputs), strict=True)]

    def copy() -> None:
        for into, source in moves:
            np.copyto(into, source)

    return inputs[comm.rank], copy


def times(meeting: MPI.Intracomm, way: list[Bound], calls: int) -> list[float]:
    """The seconds of some calls on this rank."""
    found = []
    for i in range(UNTIMED + calls):
        x, call = way[i % SETS]
        x.fill(1.0)
        meeting.Barrier()
        start = perf_counter()
        call()
        found.append(perf_counter() - start)
    return found[UNTIMED:]


def times_in_a_row(meeting: MPI.Intracomm, way: list[Bound], calls: int) -> list[float]:
    """The seconds of a call among many, on this rank."""
    for x, call in way:
        x.fill(1.0)
        call()
    meeting.Barrier()
    start = perf_counter()
    for i in range(MORE * calls):
        way[i % SETS][1]()
    return [(perf_counter() - start) / (MORE * calls)]


Times = Callable[[MPI.Intracomm, list[Bound], int], list[float]]


def measured(
    comm: mpicoll.Communicator, meeting: MPI.Intracomm, direct: MPI.Intracomm, name: str, nbytes: int, timed: Times
) -> list[float]:
    """The median of each way."""
    these = lengths(name, nbytes, comm.size)
    # A little longer: where arrays of one length are ordinary ones, shared ones are passed over for a while.
    longer = lengths(name, nbytes + 64 * comm.size, comm.size)

    def ordinary(count: int) -> Array:
        return np.empty(count, np.float32)

    def shared(count: int) -> Array:
        return comm.empty(count, np.float32)

    call = ours(comm, name)
    others = [pair(name, longer, ordinary) for _ in range(SETS)]
    ways = [
        [on(pair(name, these, ordinary), bare(direct, name)) for _ in range(SETS)],
        [on(each, call) for each in others],
        [on(each, ours(comm, name, "node")) for each in others],
        [on(pair(name, these, shared), call) for _ in range(SETS)],
    ]
    if name in COPYING:
        ways.append([copying(comm, name, these) for _ in range(SETS)])
    medians = in_turn(meeting, ways, nbytes, timed)
    assert nbytes < 1 << 20 or comm.last_route == "shared"
    return medians


def in_turn(meeting: MPI.Intracomm, ways: list[list[Bound]], nbytes: int, timed: Times) -> list[float]:
    """The median seconds of each way of a call, of the slowest rank."""
    calls = max(4, min(60, (16 << 20) // nbytes))
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for way, mine in zip(ways, found, strict=True):
            mine += timed(meeting, way, calls)
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
    in_a_row = "--in-a-row" in sys.argv
    if comm.rank == 0:
        print(f"{library()}, {comm.size} ranks, {cpu_name()}{', calls in a row' if in_a_row else ''}")
    for name in [each for each in sys.argv[1:] if each != "--in-a-row"] or NAMES:
        gains = []
        columns = ["ordinary", "node", "shared", *["copy"] * (name in COPYING)]
        if comm.rank == 0:
            heads = "".join(f"{column:>12}" for column in ["MPI", *columns])
            print(f"{name:>14}{heads}   times as fast: {', '.join(columns[1:])}")
        for nbytes in SIZES:
            medians = measured(comm, meeting, direct, name, nbytes, times_in_a_row if in_a_row else times)
            gains.append(medians[0] / np.array(medians[2:]))
            if comm.rank == 0:
                figures = [f"{s * 1e6:12.1f}" for s in medians] + [f"{g:12.2f}" for g in gains[-1]]
                print(f"{size_text(nbytes):>14}{''.join(figures)}")
        if comm.rank == 0:
            means = zip(columns[1:], np.exp(np.mean(np.log(gains), axis=0)), strict=True)
            print(f"geometric means, times as fast as the MPI's own: {', '.join(f'{c} {m:.2f}' for c, m in means)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
