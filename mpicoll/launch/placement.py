"""The nodes and cores on which the ranks of a job run. ``python -m mpicoll.launch.placement``, started as a job, prints
a line for each node.

Job scripts run it first, because it ends with an error if the ranks cannot connect.
"""

from __future__ import annotations

import os
from functools import reduce
from operator import or_

from mpi4py import MPI

from mpicoll.launch.alone import ranks_here
from mpicoll.launch.lifetime import checked_world
from mpicoll.machine.cpu import cpus
from mpicoll.machine.library import library
from mpicoll.units import count, ranges

__all__ = ["main", "oversubscribed"]


def oversubscribed(comm: MPI.Comm) -> bool:
    """Whether these ranks of one node take turns on its CPUs, with each other or with other ranks that the launcher has
    started there. Collective."""
    masks: list[int] = comm.allgather(sum(1 << cpu for cpu in cpus()))
    all_cpus = reduce(or_, masks).bit_count()
    bound_apart = all_cpus == sum(mask.bit_count() for mask in masks) and ranks_here() <= (os.cpu_count() or 1)
    return not bound_apart and max(comm.size, ranks_here()) > all_cpus


def main() -> None:
    """Print the MPI library, and the ranks of each node with the cores and GPUs that they are bound to. Collective;
    rank 0 prints."""
    world = checked_world()
    bindings = world.gather((MPI.Get_processor_name(), cpus(), os.environ.get("CUDA_VISIBLE_DEVICES")))
    if bindings is None:
        return
    nodes: dict[str, list[int]] = {}
    for rank, (node, _, _) in enumerate(bindings):
        nodes.setdefault(node, []).append(rank)
    print(f"{count(len(bindings), 'rank')} on {count(len(nodes), 'node')}, {library()}")
    for node, ranks in nodes.items():
        cores = [bindings[rank][1] for rank in ranks]
        line = f"{node}: ranks {ranges(ranks)}, bound to cores {' | '.join(ranges(sorted(c)) for c in cores)}"
        gpus = [bindings[rank][2] for rank in ranks]
        print(f"{line}, GPUs {' | '.join(map(str, gpus))}" if any(gpus) else line)
        all_cores = len(set().union(*cores))
        if all_cores < len(ranks):
            turns = f"{len(ranks)} ranks take turns on {count(all_cores, 'core')}"
            print(f"{node}: {turns}: expected a core for each at least")


if __name__ == "__main__":
    main()
