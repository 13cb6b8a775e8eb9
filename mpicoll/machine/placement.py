"""Where the ranks of a job are: ``python -m mpicoll.machine.placement``, as its ranks, prints a line for each node.

A job script runs it first: it ends with an error if the ranks do not find each other.
"""

from __future__ import annotations

import os

from mpi4py import MPI

from mpicoll.lifetime import checked_world

__all__ = ["main", "ranges"]


def main() -> None:
    """Print the MPI library and the ranks of each node with what they are bound to. Collective; rank 0 prints."""
    world = checked_world()
    mine = (MPI.Get_processor_name(), os.sched_getaffinity(0), os.environ.get("CUDA_VISIBLE_DEVICES"))
    found = world.gather(mine)
    if found is None:
        return
    nodes: dict[str, list[int]] = {}
    for rank, (node, _, _) in enumerate(found):
        nodes.setdefault(node, []).append(rank)
    name, version = MPI.get_vendor()
    print(f"{count(len(found), 'rank')} on {count(len(nodes), 'node')}, {name} {'.'.join(map(str, version))}")
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
