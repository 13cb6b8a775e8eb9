"""What does a call cost in Python? An 8-byte all-reduce, back to back, through mpi4py and each of mpicoll's interfaces.

    mpicoll run -n 2 benchmarks/call_cost.py

`mpicoll bench` rewrites the buffers and calls a barrier between calls. This program does not, so caches stay warm, and
the differences are the work of the Python interpreter. The interfaces take turns. The figures are microseconds a call:
the minimum and the median over the turns.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
import torch.distributed
from mpi4py import MPI

import mpicoll
import mpicoll.torch as dist
from mpicoll.algorithms import find
from mpicoll.schedule import Copy

TURNS, CALLS = 40, 5000


def main() -> None:
    """Measure. Rank 0 prints."""
    world = MPI.COMM_WORLD
    comm, checked = mpicoll.Communicator(world), mpicoll.Communicator(world, check="full")
    dist.init_process_group()
    torch.distributed.init_process_group("mpicoll")
    x, t = np.zeros(2, np.float32), torch.zeros(2)
    sent, received = np.zeros(1, np.int64), np.zeros(1, np.int64)
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    calls: dict[str, Callable[[], object]] = {
        "mpi4py, NumPy array": lambda: world.Allreduce(MPI.IN_PLACE, x, MPI.SUM),
        "Communicator.allreduce, NumPy array": lambda: comm.allreduce(x, out=x),
        "Communicator.allreduce, torch tensor": lambda: comm.allreduce(t, out=t),
        "Communicator.allreduce, check=full": lambda: checked.allreduce(x, out=x),
        "mpi4py, Sendrecv of 8 bytes": lambda: world.Sendrecv(sent, after, 0, received, before, 0),
        "mpicoll.torch.all_reduce": lambda: dist.all_reduce(t),
        "torch.distributed.all_reduce, mpicoll": lambda: torch.distributed.all_reduce(t),
        "recursive_doubling, NumPy array": lambda: comm.allreduce(x, out=x, algorithm="recursive_doubling"),
        "ring, NumPy array": lambda: comm.allreduce(x, out=x, algorithm="ring"),
    }
    if world.rank == 0:
        print(
            "messages that a rank sends and receives: recursive_doubling",
            messages("recursive_doubling", world.size),
            end="",
        )
        print(", ring", messages("ring", world.size))
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.disable()
    for _ in range(TURNS):
        for name, call in calls.items():
            world.Barrier()
            start = perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((perf_counter() - start) / CALLS * 1e6)
    gc.enable()
    if world.rank == 0:
        print(MPI.Get_library_version().splitlines()[0].split(",")[0])
        for name, each in times.items():
            print(f"{name:38} {min(each):6.2f} {float(np.median(each)):6.2f}")
    dist.destroy_process_group()
    torch.distributed.destroy_process_group()


def messages(algorithm: str, size: int) -> int:
    """How many messages rank 0 sends and receives."""
    found = find("allreduce", algorithm)
    assert found is not None
    return sum(not isinstance(action, Copy) for step in found.schedule(0, size).steps for action in step)


if __name__ == "__main__":
    main()
