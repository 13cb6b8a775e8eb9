"""Where the ranks of a job are: ``python -m mpicoll.launch.placement``, as its ranks, prints a line for each node.

A job script runs it first: it ends with an error if the ranks do not find each other.
"""

from __future__ import annotations

import os
from functools import reduce
from operator import or_

from mpi4py import MPI

from mpicoll.launch.alone import ranks_here
from mpicoll.launch.lifetime import checked_world
from mpicoll.machine.library import library

__all__ = ["cpus", "main", "oversubscribed", "ranges"]


def cpus() -> set[int]:
    """The CPUs that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def oversubscribed(comm: MPI.Comm) -> bool:
    """Whether these ranks of one node take turns on its CPUs, with each other or with more ranks that this one's
    launcher has started there. Collective."""
    masks: list[int] = comm.allgather(sum(1 << cpu for cpu in cpus()))
    together = reduce(or_, masks).bit_count()
    bound_apart = together == sum(mask.bit_count() for mask in masks) and ranks_here() <= (os.cpu_count() or 1)
    return not bound_apart and max(comm.size, ranks_here()) > together


def main() -> None:
    """Print the MPI library and the ranks of each node with what they are bound to. Collective; rank 0 prints."""
    world = checked_world()
    mine = (MPI.Get_processor_name(), cpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    found = world.gather(mine)
    if found is None:
        return
    nodes: dict[str, list[int]] = {}
    for rank, (node, _, _) in enumerate(found):
        nodes.setdefault(node, []).append(rank)
    print(f"{count(len(found), 'rank')} on {count(len(nodes), 'node')}, {library()}")
    for node, ranks in nodes.items():
        cores = [found[rank][1] for rank in ranks]
        line = f"{node}: ranks {ranges(ranks)}, bound to cores {' | '.join(ranges(sorted(c)) for c in cores)}"
        gpus = [found[rank][2] for rank in ranks]
        print(line + (f", GPUs {' | '.join(map(str, gpus))}" if any(gpus) else ""))
        shared = len(set().union(*cores))
        if shared < len(ranks):
            print(
                f"{node}: {len(ranks)} ranks take turns on {count(shared, 'core')}: expected a core for each at least"
            )


def count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def ranges(numbers: list[int]) -> str:
    """Sorted numbers as 0-3,8."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


if __name__ == "__main__":
    main()
