"""What does a call cost in Python? An 8-byte all-reduce, back to back, through mpi4py and each of mpicoll's interfaces.

    mpicoll run -n 2 benchmarks/call_cost.py

`mpicoll bench` rewrites the buffers and calls a barrier between calls. This program does not, so caches stay warm, and
the differences are the work of the Python interpreter. The interfaces take turns. The figures are microseconds a call:
the minimum and the median over the turns.
"""

from __future__ import annotations

from timeit import Timer

import numpy as np
import torch
import torch.distributed
from mpi4py import MPI

import mpicoll
import mpicoll.torch as dist
from mpicoll.algorithms import find
from mpicoll.algorithms.steps import Copy

TURNS, CALLS = 40, 5000


def main() -> None:
    """Measure. Rank 0 prints."""
    world = MPI.COMM_WORLD
    comm, checked = mpicoll.Communicator(world), mpicoll.Communicator(world, check="full")
    dist.init_process_group()
    torch.distributed.init_process_group("mpicoll")
    x, t, long = np.zeros(2, np.float32), torch.zeros(2), np.zeros(1 << 14, np.float32)
    sent, received = np.zeros(1, np.int64), np.zeros(1, np.int64)
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    calls = {
        "mpi4py, NumPy array": "world.Allreduce(MPI.IN_PLACE, x, MPI.SUM)",
        "Communicator.allreduce, NumPy array": "comm.allreduce(x, out=x)",
        "Communicator.allreduce, torch tensor": "comm.allreduce(t, out=t)",
        "Communicator.allreduce, check=full": "checked.allreduce(x, out=x)",
        "mpi4py, Sendrecv of 8 bytes": "world.Sendrecv(sent, after, 0, received, before, 0)",
        "mpicoll.torch.all_reduce": "dist.all_reduce(t)",
        "torch.distributed.all_reduce, mpicoll": "torch.distributed.all_reduce(t)",
        "recursive_doubling, NumPy array": 'comm.allreduce(x, out=x, algorithm="recursive_doubling")',
        "ring, NumPy array": 'comm.allreduce(x, out=x, algorithm="ring")',
        "Communicator.allreduce of 64 KiB": "comm.allreduce(long, out=long)",
    }
    names = {**globals(), **locals()}
    timers = {name: Timer(call, globals=names) for name, call in calls.items()}  # each in a loop of one function
    if world.rank == 0:
        print(
            "messages that a rank sends and receives: recursive_doubling",
            messages("recursive_doubling", world.size),
            end="",
        )
        print(", ring", messages("ring", world.size))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, timer in timers.items():
            world.Barrier()
            n = CALLS // 10 if "KiB" in name else CALLS
            times[name].append(timer.timeit(n) / n * 1e6)
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
