"""Are collectives of shared arrays faster on huge pages, and how long does it take to make such arrays?

    mpicoll run -n 2 -m benchmarks.shared_pages [COLLECTIVE ...]

Three ways take turns: the MPI's own call on ordinary arrays, and mpicoll's call on arrays of ``Communicator.empty``
whose memory has small pages, and huge ones. Otherwise it is as in shared_arrays.py. The figures are medians in
microseconds, of the slower rank.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import geometric_mean, median
from time import perf_counter

import numpy as np
from mpi4py import MPI

import mpicoll
from benchmarks.shared_arrays import NAMES, SETS, Array, Bound, bare, in_turn, lengths, on, ours, pair, times
from mpicoll.machine import shared_memory
from mpicoll.machine.linux import cpu_name
from mpicoll.machine.mpi_library import library
from mpicoll.machine.shared_memory import LEAST_HUGE
from mpicoll.units import size_text

SIZES = [4 << 20, 16 << 20, 64 << 20]
KINDS = "small", "huge"

Call = Callable[[Array, Array], object]


def rooms(comm: mpicoll.Communicator, kind: str, nbytes: int) -> tuple[list[Array], float]:
    """New shared arrays for all sets, which no call had before, and the median of the seconds that each took."""
    shared_memory.LEAST_HUGE = LEAST_HUGE if kind == "huge" else sys.maxsize
    found, seconds = [], []
    for _ in range(2 * SETS):
        start = perf_counter()
        found.append(comm.empty(nbytes // 4 + 16 * comm.size, np.float32))
        found[-1].fill(1)
        seconds.append(perf_counter() - start)
    return found, median(seconds)


def arrays(name: str, nbytes: int, size: int, empty: Callable[[int], Array], call: Call) -> list[Bound]:
    """A call on its arrays, of each set."""
    return [on(pair(name, lengths(name, nbytes, size), empty), call) for _ in range(SETS)]


def parts(made: list[Array]) -> Callable[[int], Array]:
    """A function that gives the beginning of one array after another."""
    left = iter(made)
    return lambda count: next(left)[:count]


def main() -> None:
    comm, meeting, direct = mpicoll.Communicator(), MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
    first = comm.zeros(1 << 20)
    comm.allreduce(first, out=first)  # from now on ranks say where their arrays lie

    def say(text: str) -> None:
        if comm.rank == 0:
            print(text, flush=True)

    say(f"{library()}, {comm.size} ranks, {cpu_name()}")
    for nbytes in SIZES:
        (small, on_small), (huge, on_huge) = (rooms(comm, kind, nbytes) for kind in KINDS)
        took = f"{on_small * 1e3:.1f} ms on small pages, {on_huge * 1e3:.1f} ms on huge ones"
        say(f"{size_text(nbytes)}: to make and fill an array took {took}")
        say(f"{'':>14}{'MPI':>12}{'small':>12}{'huge':>12}   huge: times as fast as small, as the MPI's own")
        gains = []
        for name in sys.argv[1:] or NAMES:
            call, size = ours(comm, name), comm.size
            ways = [arrays(name, nbytes, size, lambda n: np.empty(n, np.float32), bare(direct, name))]
            ways += [arrays(name, nbytes, size, parts(made), call) for made in (small, huge)]
            mpi, on_small, on_huge = medians = in_turn(meeting, ways, nbytes, times)
            assert comm.last_route == "shared"
            gains.append((on_small / on_huge, mpi / on_huge))
            say(f"{name:>14}{''.join(f'{s * 1e6:12.1f}' for s in medians)}{''.join(f'{g:12.2f}' for g in gains[-1])}")
        say(f"geometric means: {', '.join(f'{geometric_mean(g):.2f}' for g in zip(*gains, strict=True))}\n")


if __name__ == "__main__":
    main()
