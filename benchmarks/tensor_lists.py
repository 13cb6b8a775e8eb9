"""How long do torch's collectives of lists of tensors take?

    mpicoll run -n 4 benchmarks/tensor_lists.py

Each list has a float32 tensor for each rank. The figures are medians in microseconds, of the slowest rank.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
from mpi4py import MPI

import mpicoll.torch as dist
from mpicoll.machine.linux import cpu_name
from mpicoll.machine.mpi_library import library
from mpicoll.units import size_text

SIZES = [1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20]
CALLS, FEW, UNTIMED = 60, 15, 3


def calls(nbytes: int) -> dict[str, Callable[[], object]]:
    """The collectives whose tensors have so many bytes. The root is rank 0."""
    n, ranks, at_root = nbytes // 4, dist.get_world_size(), dist.get_rank() == 0
    x, ins = torch.ones(n), [torch.ones(n) for _ in range(ranks)]
    outs = [torch.empty(n) for _ in range(ranks)]
    return {
        "all_gather": lambda: dist.all_gather(outs, x),
        "gather": lambda: dist.gather(x, outs if at_root else None),
        "scatter": lambda: dist.scatter(x, ins if at_root else None),
        "reduce_scatter": lambda: dist.reduce_scatter(x, ins),
        "all_to_all": lambda: dist.all_to_all(outs, ins),
    }


def median_of(call: Callable[[], object], n: int) -> float:
    found = []
    for _ in range(n):
        MPI.COMM_WORLD.Barrier()
        start = perf_counter()
        call()
        found.append(MPI.COMM_WORLD.allreduce(perf_counter() - start, MPI.MAX))
    return float(np.median(found[UNTIMED:])) * 1e6


def main() -> None:
    dist.init_process_group()
    if dist.get_rank() == 0:
        print(f"# {library()}, {dist.get_world_size()} ranks, {cpu_name()}")
    for nbytes in SIZES:
        medians = {name: median_of(call, CALLS if nbytes < SIZES[-1] else FEW) for name, call in calls(nbytes).items()}
        if dist.get_rank() == 0:
            print(
                f"{size_text(nbytes):>5} a tensor:", *(f"{name} {us:.0f}" for name, us in medians.items()), flush=True
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
