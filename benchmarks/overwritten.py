"""What does it change if ranks overwrite what they have read in memory that they share, and copy by a loop?

    mpicoll run -n 2 benchmarks/overwritten.py [SECONDS]

Two communicators take turns: one whose ranks do both, and one whose ranks do neither (``mpicoll/machine/caches.py``;
a loop copies vectors of 2 MiB and more). Each makes calls by algorithms that go through shared memory, on three sets of
float32 arrays in turn, whose inputs are written just before. This goes on for some seconds, because a machine has
states: two ranks write 256 KiB in turn, and read what the other one has written. How long it takes to read tells
whether their cores are near or far; among more ranks, all is called near. Figures are medians of the slower rank, in
microseconds, without the first call of four. Those of the first lines are rank 0's: "to read" includes to overwrite.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from statistics import geometric_mean, median
from time import monotonic, perf_counter
from typing import Any

import numpy as np

import mpicoll
from mpicoll.machine import caches
from mpicoll.machine.cpu import fingerprint
from mpicoll.machine.library import library
from mpicoll.units import size_text

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
CALLS = [
    ("allreduce", "cico"), ("allreduce", "ring"), ("reduce", "cico"), ("bcast", "cico"), ("bcast", "binomial_tree"),
    ("allgather", "cico"), ("allgather", "ring"), ("alltoall", "cico"), ("alltoall", "pairwise"),
]  # fmt: skip
SIZES = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
SETS, CALLS_A_TURN = 3, 4
FAR = 11.0
"""Microseconds in which a rank reads 256 KiB that the other one has written, from which on their cores are taken to be
far apart. It takes 8, and 13 or 25, on an AMD EPYC, family 25 model 17."""
TURNS = 5
WAYS = (False, True)

Array = np.ndarray[Any, np.dtype[Any]]


def handed_over(comm: mpicoll.Communicator, places: list[Array], way: bool) -> tuple[float, float]:
    """Microseconds in which a rank writes to its place again, and in which it reads the other's."""
    mine, other = places[comm.rank], places[1 - comm.rank]
    own, out = np.ones_like(mine), np.ones_like(mine)
    writes, reads = [], []
    for _ in range(TURNS):
        comm.barrier()
        start = perf_counter()
        np.copyto(mine, own)
        writes.append(perf_counter() - start)
        comm.barrier()
        start = perf_counter()
        np.copyto(out, other)
        if way:
            other.fill(0)
        reads.append(perf_counter() - start)
    return median(writes) * 1e6, median(reads) * 1e6


def arrays(comm: mpicoll.Communicator, name: str, nbytes: int) -> list[tuple[Array, Array | None]]:
    n = nbytes // 4 // comm.size * comm.size
    block, shape = n // comm.size, (comm.size, n // comm.size)
    of = {"allreduce": (n, n), "reduce": (n, n), "bcast": (n, None), "allgather": (block, shape)}
    given, got = of.get(name, (shape, shape))
    return [(np.ones(given, np.float32), None if got is None else np.empty(got, np.float32)) for _ in range(SETS)]


def call(comm: mpicoll.Communicator, name: str, algorithm: str, x: Array, out: Array | None) -> None:
    out_at = {} if out is None or (name == "reduce" and comm.rank) else {"out": out}
    getattr(comm, name)(x, **out_at, algorithm=algorithm)


def main() -> None:
    comms = {}
    of_this_cpu = caches.both_help(fingerprint())
    world = mpicoll.Communicator()
    memory = world.shared(256 << 10, np.uint8)
    places = [memory[r] for r in range(world.size)]
    to_hand_over: dict[tuple[bool, bool], list[tuple[float, float]]] = defaultdict(list)
    took: dict[tuple[str, str, int, bool, bool], list[float]] = defaultdict(list)
    states = []
    sets = {(name, size): arrays(world, name, size) for name in {name for name, _ in CALLS} for size in SIZES}
    for way in WAYS:
        comms[way] = mpicoll.Communicator()
        caches.both_help = lambda cpu, way=way: way  # type: ignore[misc]
        for name, algorithm in CALLS:  # binds the plans
            for size in SIZES:
                for x, out in sets[name, size]:
                    call(comms[way], name, algorithm, x, out)
    end = monotonic() + SECONDS
    while world.bcast_object(monotonic() < end):
        for name, algorithm in CALLS:
            for size in SIZES:
                handed = {way: handed_over(world, places, way) for way in WAYS} if world.size == 2 else {}
                far = bool(world.bcast_object(handed and handed[False][1] >= FAR))
                states.append(far)
                for way, took_so_long in handed.items():
                    to_hand_over[far, way].append(took_so_long)
                for way in WAYS:
                    caches.both_help = lambda cpu, way=way: way  # type: ignore[misc]
                    times = []
                    for i in range(CALLS_A_TURN):
                        x, out = sets[name, size][i % SETS]
                        x.fill(1)
                        world.barrier()
                        start = perf_counter()
                        call(comms[way], name, algorithm, x, out)
                        times.append(perf_counter() - start)
                    slower = world.allreduce(np.array(times[1:]), op="max")
                    took[name, algorithm, size, far, way] += list(slower * 1e6)
    if world.rank:
        return
    said = f"{library()}, {world.size} ranks, {fingerprint()}"
    print(f"{said}\nmpicoll overwrites on this CPU: {of_this_cpu}. far: {np.mean(states):.0%} of {len(states)} samples")
    for (far, way), times_of in sorted(to_hand_over.items()):
        write, read = (median(each[i] for each in times_of) for i in range(2))
        does = "overwrites it" if way else "does not"
        print(f"{'far' if far else 'near'}, the reader {does}: to write 256 KiB {write:.1f}, to read it {read:.1f}")
    titles = [f"{f'{where}: neither':>12} {'both':>12} {'x':>5}" for where in ("near", "far")]
    print(f"{'':>25} {'size':>6} {' '.join(titles)}")
    for name, algorithm in CALLS:
        gains: dict[bool, list[float]] = {False: [], True: []}
        for size in SIZES:
            columns = []
            for far in (False, True):
                kept, over = (took[name, algorithm, size, far, way] for way in WAYS)
                if kept and over:
                    gains[far].append(median(kept) / median(over))
                    columns.append(f"{median(kept):12.1f} {median(over):12.1f} {gains[far][-1]:5.2f}")
                else:
                    columns.append(" " * 31)
            print(f"{name:>14} {algorithm:>10} {size_text(size):>6} {' '.join(columns)}")
        means = (f"{'far' if far else 'near'} {geometric_mean(of):.2f}" for far, of in gains.items() if of)
        print(f"{'':>25} geometric means: {', '.join(means)}")


main()
