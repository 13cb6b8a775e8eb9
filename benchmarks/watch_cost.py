"""What does a call cost under watch? Calls of mpi4py among 2 ranks, back to back, plain and watched.

    mpicoll run -n 2 benchmarks/watch_cost.py

mpi4py's own methods are kept before the watch begins, so that plain and watched calls take turns in one run. The
figures are microseconds: the minimum and the median over the turns, and the difference of the minima for each call.
"""

from __future__ import annotations

from timeit import Timer

import numpy as np
from mpi4py import MPI

import mpicoll

TURNS, REPEATS = 30, 2000
CALLS = {
    "Allreduce of 8 bytes": (1, "Allreduce({comm}x, y)"),
    "Bcast of 8 bytes": (1, "Bcast({comm}x)"),
    "Barrier": (1, "Barrier({comm})"),
    "allreduce of an object": (1, "allreduce({comm}1)"),
    "Sendrecv": (1, "Sendrecv({comm}x, other, 0, y, other, 0)"),
    "Sendrecv, arguments by name": (1, "Sendrecv({comm}sendbuf=x, dest=other, recvbuf=y, source=other)"),
    "Irecv, Isend and Waitall": (3, "Waitall([Irecv({comm}y, other), Isend({comm}x, other)])"),
    "Irecv, Isend and two Waits": (4, "a = Irecv({comm}y, other); b = Isend({comm}x, other); Wait(a); Wait(b)"),
    "Iallreduce and Wait": (2, "Wait(Iallreduce({comm}x, y))"),
}
"""How many calls of mpi4py's each line makes."""
METHODS = ("Allreduce", "Bcast", "Barrier", "allreduce", "Sendrecv", "Irecv", "Isend", "Iallreduce")


def methods() -> dict[str, object]:
    """mpi4py's methods as they are now, as functions."""
    of_requests = {"Waitall": MPI.Request.Waitall, "Wait": MPI.Request.Wait}
    return {name: getattr(MPI.Intracomm, name) for name in METHODS} | of_requests


def main() -> None:
    """Measure. Rank 0 prints."""
    world = MPI.COMM_WORLD
    values = {"comm": world, "other": world.rank ^ 1, "x": np.ones(1), "y": np.ones(1)}
    plain = methods() | values
    mpicoll.watch()
    ways = {"plain": plain, "watched": methods() | values}
    timers = {
        (name, way): Timer(line.format(comm="comm, "), globals=names)
        for name, (_, line) in CALLS.items()
        for way, names in ways.items()
    }
    times: dict[tuple[str, str], list[float]] = {key: [] for key in timers}
    for _ in range(TURNS):
        for key, timer in timers.items():
            world.Barrier()
            times[key].append(timer.timeit(REPEATS) / REPEATS * 1e6)
    if world.rank == 0:
        print(MPI.Get_library_version().splitlines()[0].split(",")[0])
        print(f"{'':30} {'plain':>14} {'watched':>14} {'more a call':>12}")
        for name, (calls, _) in CALLS.items():
            found = [times[name, way] for way in ways]
            each = " ".join(f"{min(one):7.2f}{float(np.median(one)):7.2f}" for one in found)
            print(f"{name:30} {each} {(min(found[1]) - min(found[0])) / calls:12.2f}")


if __name__ == "__main__":
    main()
