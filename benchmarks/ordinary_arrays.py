"""Would an all-reduce of ordinary arrays be faster in another way than those that mpicoll has?

    mpicoll run -n 2 benchmarks/ordinary_arrays.py

Five all-reduces of float32 between 2 ranks of a node take turns. Each reads an ordinary array, and has another result:

- `native` is the MPI's own. MPI libraries copy long messages from process to process, too.
- `default` is what mpicoll chooses by its table of measurements.
- `cico` goes through memory that the ranks share.
- `peer reads`: each rank reads its half of the other rank's array where that lies (process_vm_readv), adds it to its
  own, and then reads the other half of the result.
- `shared result`: each rank copies its array to one of `comm.empty`, and that is all-reduced in place. The result lies
  in shared memory.

The figures are medians in microseconds, of the slower rank, and how many times as fast as `native` each is. The last
column is the time in which a rank reads 256 KiB that the other one has just written: it says how far their cores are
from each other.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import mpicoll
from mpicoll.machine.cpu import fingerprint
from mpicoll.machine.library import library
from mpicoll.units import size_text

SIZES = tuple(1 << bits for bits in range(14, 27))
SECONDS = 2.0
"""For each size, of all ways together."""
SETS = 3
NAMES = ("native", "default", "cico", "peer reads", "shared result")

Array = np.ndarray[Any, np.dtype[np.float32]]
Way = Callable[[], object]


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


READ = ctypes.CDLL(None, use_errno=True).process_vm_readv
READ.restype = ctypes.c_ssize_t
READ.argtypes = (ctypes.c_int, *(ctypes.POINTER(_Piece), ctypes.c_ulong) * 2, ctypes.c_ulong)


def reader(process: int, address: int, into: Array) -> Way:
    """Reads as many bytes as ``into`` has from an address of another process."""
    mine, theirs = _Piece(into.ctypes.data, into.nbytes), _Piece(address, into.nbytes)

    def read() -> None:
        if READ(process, mine, 1, theirs, 1, 0) != into.nbytes:
            raise OSError(ctypes.get_errno(), "process_vm_readv")

    return read


def by_peer_reads(comm: mpicoll.Communicator, x: Array, y: Array, meet: Way) -> Way:
    """The all-reduce of x into y by reading the other process's memory."""
    told = comm.allgather_object((os.getpid(), x.ctypes.data, y.ctypes.data))
    process, of_x, of_y = told[1 - comm.rank]
    half = len(x) // 2
    first, last = slice(0, half), slice(half, len(x))
    own, rest = (first, last) if comm.rank == 0 else (last, first)
    theirs = np.empty_like(x[own])
    read_values = reader(process, of_x + own.start * x.itemsize, theirs)
    read_result = reader(process, of_y + rest.start * x.itemsize, y[rest])

    def allreduce() -> None:
        meet()  # the other array is there
        read_values()
        np.add(x[own], theirs, out=y[own])
        meet()
        read_result()
        meet()  # nobody reads this result any more

    return allreduce


def by_shared_result(comm: mpicoll.Communicator, x: Array, shared: Array) -> Way:
    """The all-reduce of x into an array in shared memory."""
    reduce = comm.bind("allreduce", shared, out=shared)

    def allreduce() -> None:
        np.copyto(shared, x)
        reduce()

    return allreduce


def ways(comm: mpicoll.Communicator, n: int, meet: Way) -> dict[str, list[tuple[Way, Array]]]:
    """By their names: calls on several arrays, with where the results are."""
    found: dict[str, list[tuple[Way, Array]]] = {name: [] for name in NAMES}
    for _ in range(SETS):
        x, y, shared = np.ones(n, np.float32), np.empty(n, np.float32), comm.empty(n, np.float32)
        for name, algorithm in (("native", "native"), ("default", None), ("cico", "cico")):
            found[name].append((comm.bind("allreduce", x, out=y, algorithm=algorithm), y))
        found["peer reads"].append((by_peer_reads(comm, x, y, meet), y))
        found["shared result"].append((by_shared_result(comm, x, shared), shared))
    return found


def main() -> None:
    comm = mpicoll.Communicator()
    if comm.size != 2:
        raise SystemExit("ordinary_arrays.py: expected 2 ranks")
    page = comm.empty(4 << 10, np.float32)
    meet = comm.bind("allreduce", page, out=page)  # 2 to 3 us, as ranks meet that share arrays
    if comm.rank == 0:
        print(f"# {library()}, 2 ranks, {fingerprint()}")
        print(f"{'bytes':>8}" + "".join(f"{name:>18}" for name in NAMES) + f"{'far':>9}")
    for nbytes in SIZES:
        measure(comm, nbytes, meet)


def hands_over(comm: mpicoll.Communicator) -> float:
    """Microseconds in which a rank reads 256 KiB that the other one has just written."""
    places = comm.shared(1 << 16, np.float32)
    mine, other = places[comm.rank], places[1 - comm.rank]
    own, out, took = np.ones_like(mine), np.empty_like(mine), []
    for _ in range(20):
        np.copyto(mine, own)
        comm.barrier()
        start = perf_counter()
        np.copyto(out, other)
        took.append(perf_counter() - start)
        comm.barrier()
    return float(max(comm.allgather_object(median(took)))) * 1e6


def measure(comm: mpicoll.Communicator, nbytes: int, meet: Way) -> None:
    """One size, and its line."""
    all_ways = ways(comm, nbytes // 4, meet)
    times: dict[str, list[float]] = {name: [] for name in all_ways}
    end = perf_counter() + SECONDS
    turn = 0
    while comm.bcast_object(perf_counter() < end):
        for name, calls in all_ways.items():
            for _ in range(3):
                call, result = calls[turn % SETS]
                turn += 1
                result.fill(0)
                comm.barrier()
                start = perf_counter()
                call()
                took = perf_counter() - start
                assert result[0] == result[-1] == 2, name
                times[name].append(took)
    handed = hands_over(comm)
    slower = {name: comm.allgather_object(median(took)) for name, took in times.items()}
    if comm.rank == 0:
        us = {name: max(both) * 1e6 for name, both in slower.items()}
        said = "".join(f"{us[name]:10.0f} {us['native'] / us[name]:6.2f}x" for name in us)
        print(f"{size_text(nbytes):>8}{said}{handed:9.0f}", flush=True)


if __name__ == "__main__":
    main()
