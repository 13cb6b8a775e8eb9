"""How long does a machine stay in one state, and do a few primitives tell which one it is?

    mpicoll run -n 2 benchmarks/machine_states.py [SECONDS]

Ten times a second, two ranks measure three primitives: a flag's way to the other rank and back, a copy of 256 KiB that
the other rank has just written, and a maximum of 256 KiB of the rank's own. Just after that, calls of an
all-reduce of 1 MiB are made by several algorithms. This prints the medians of each few seconds, how often the fastest
algorithm changed, and how much faster calls would have been if the primitives of so many seconds earlier had chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.machine.cpu import fingerprint
from mpicoll.machine.library import library

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
N = (256 << 10) // 4
Array = np.ndarray[Any, np.dtype[Any]]
ALGORITHMS = ("native", "cico", "ring")
PAUSE = 0.1
CALLS, TRIPS = 9, 200
LATER = (0.0, 1.0, 10.0, 60.0)
SHOWN = 5.0


def flag_trip(comm: mpicoll.Communicator, flags: list[Array], begin: int) -> float:
    """Microseconds of a flag's way to the other rank and back."""
    mine, others = (flags[r].data for r in (comm.rank, 1 - comm.rank))
    start = perf_counter_ns()
    for i in range(begin, begin + TRIPS):
        if comm.rank == 0:
            mine[0] = i
        while others[0] != i:
            pass
        if comm.rank == 1:
            mine[0] = i
    return (perf_counter_ns() - start) / TRIPS / 1e3


def least(calls: int, prepare: Callable[[], object], call: Callable[[], object]) -> float:
    """The fastest of a few calls, in microseconds."""
    found = []
    for _ in range(calls):
        prepare()
        MPI.COMM_WORLD.Barrier()
        start = perf_counter_ns()
        call()
        found.append((perf_counter_ns() - start) / 1e3)
    return min(found)


def main() -> None:
    world = MPI.COMM_WORLD
    with mpicoll.Communicator() as comm:
        flags = comm.shared(8, np.int64)
        places = comm.shared(N, np.float32)
        own, out = np.ones(N, np.float32), np.ones(N, np.float32)
        x, y = np.ones(4 * N, np.float32), np.ones(4 * N, np.float32)
        mine, others = places[comm.rank], places[1 - comm.rank]
        flags[comm.rank][:] = 0
        rows: list[list[float]] = []
        began, trips = perf_counter_ns(), 1
        while world.bcast((perf_counter_ns() - began) / 1e9 < SECONDS):
            at = (perf_counter_ns() - began) / 1e9
            world.Barrier()
            trip = flag_trip(comm, flags, trips)
            trips += TRIPS
            copied = least(CALLS, lambda: mine.fill(1), lambda: np.copyto(out, others))
            reduced = least(CALLS, lambda: None, lambda: np.maximum(own, out, out=out))
            times = {
                name: [
                    least(1, lambda: x.fill(1), lambda: comm.allreduce(x, out=y, algorithm=name))  # noqa: B023
                    for _ in range(CALLS)
                ]
                for name in ALGORITHMS
            }
            row = np.array([trip, copied, reduced, *(median(times[name]) for name in ALGORITHMS)])
            world.Allreduce(MPI.IN_PLACE, row, MPI.MAX)
            rows.append([at, *row.tolist()])
            sleep(PAUSE)
        if world.rank == 0:
            report(np.array(rows))


def report(rows: Array) -> None:
    print(f"# {library()}, {fingerprint()}, 2 ranks, {len(rows)} samples")
    print("#  second   trip  copied  maximum   " + "  ".join(ALGORITHMS) + "  (us)")
    for start in np.arange(0, rows[-1, 0], SHOWN):
        within = rows[(rows[:, 0] >= start) & (rows[:, 0] < start + SHOWN)]
        if len(within):
            print(f"{start:8.0f} " + " ".join(f"{v:8.2f}" for v in np.median(within[:, 1:], axis=0)))
    fastest = rows[:, 4:].argmin(axis=1)
    print("# the fastest: " + ", ".join(f"{name} {np.mean(fastest == i):.0%}" for i, name in enumerate(ALGORITHMS)))
    for column, name in ((1, "trip"), (2, "copied"), (3, "maximum")):
        values = rows[:, column]
        print(f"# {name}: " + ", ".join(f"{q} % {np.percentile(values, q):.2f}" for q in (5, 25, 50, 75, 95)))
    overall = np.bincount(fastest, minlength=len(ALGORITHMS)).argmax()
    times = rows[:, 4:]
    for later in LATER:
        pairs = [
            (i, j) for i, t in enumerate(rows[:, 0]) if (j := int(np.searchsorted(rows[:, 0], t + later))) < len(rows)
        ]
        if len(pairs) < 10:
            continue
        before, after = (np.array(each) for each in zip(*pairs, strict=True))
        chosen = foretold(rows[before, 1:4], rows[:, 1:4], fastest)
        gain = times[after, overall].sum() / times[after, chosen].sum()
        best = times[after, overall].sum() / times[after].min(axis=1).sum()
        print(
            f"# {later:.0f} s later: by the primitives' class {gain:.3f} times as fast as {ALGORITHMS[overall]}; "
            f"the best possible {best:.3f}"
        )


def foretold(given: Array, known: Array, fastest: Array) -> Array:
    """The algorithm that was fastest most often in the class of these primitives: above or below the median of each."""
    middle = np.median(known, axis=0)
    weights = 1 << np.arange(known.shape[1])
    classes = ((known > middle) * weights).sum(axis=1)
    best = {c: int(np.bincount(fastest[classes == c]).argmax()) for c in set(classes.tolist())}
    return np.array([best[c] for c in ((given > middle) * weights).sum(axis=1).tolist()])


if __name__ == "__main__":
    main()
