"""The nodes and cores on which the ranks of a job run. ``python -m mpicoll.launch.placement``, started as a job, prints
a line for each node.

Job scripts run it first, because it ends with an error if the ranks cannot connect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path

from mpi4py import MPI

from mpicoll.launch.alone import rank_here, ranks_here
from mpicoll.launch.cores import numa_nodes
from mpicoll.launch.lifetime import checked_world
from mpicoll.machine.cpu import cpus
from mpicoll.machine.library import library
from mpicoll.units import count, named, ranges

__all__ = ["main", "oversubscribed"]

_GPUS, _BUS = Path("/proc/driver/nvidia/gpus"), Path("/sys/bus/pci/devices")


def oversubscribed(comm: MPI.Comm) -> bool:
    """Whether these ranks of one node take turns on its CPUs, with each other or with other ranks that the launcher has
    started there. Collective."""
    masks: list[int] = comm.allgather(sum(1 << cpu for cpu in cpus()))
    all_cpus = reduce(or_, masks).bit_count()
    bound_apart = all_cpus == sum(mask.bit_count() for mask in masks) and ranks_here() <= (os.cpu_count() or 1)
    return not bound_apart and max(comm.size, ranks_here()) > all_cpus


@dataclass(frozen=True)
class _Seat:
    """Where a rank is: its node, its CPUs and their NUMA nodes, the GPUs that it sees, and the NUMA node of its own."""

    node: str
    cpus: set[int]
    numa: set[int]
    gpus: str | None
    gpu_numa: int | None


def _seat() -> _Seat:
    mine, gpus = cpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return _Seat(MPI.Get_processor_name(), mine, numa_nodes(mine), gpus, gpu_numa(gpus, rank_here()))


def gpu_numa(visible: str | None, rank: int) -> int | None:
    """The NUMA node of the GPU that this rank of the node takes: the one with its number among those that it sees.
    None if it has none, or the system does not say it."""
    there = sorted(folder.name for folder in _GPUS.glob("*"))  # by their places on the bus, as CUDA_VISIBLE_DEVICES
    numbers = [*range(len(there))] if visible is None else [int(n) for n in visible.split(",") if n.isdecimal()]
    if not numbers or max(numbers) >= len(there):
        return None
    try:
        node = int((_BUS / there[numbers[rank % len(numbers)]].lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the machine has one, or does not tell


def main() -> None:
    """Print the MPI library, and the ranks of each node with the cores and GPUs that they are bound to. Collective;
    rank 0 prints."""
    world = checked_world()
    seats = world.gather(_seat())
    if seats is None:
        return
    nodes: dict[str, dict[int, _Seat]] = {}
    for rank, seat in enumerate(seats):
        nodes.setdefault(seat.node, {})[rank] = seat
    print(f"{count(len(seats), 'rank')} on {count(len(nodes), 'node')}, {library()}")
    for node, there in nodes.items():
        print("\n".join(f"{node}: {line}" for line in lines(there)))


def lines(there: dict[int, _Seat]) -> Iterator[str]:
    """What there is to say of the ranks of a node."""
    seats = there.values()
    line = f"ranks {ranges([*there])}, bound to cores {' | '.join(ranges(sorted(seat.cpus)) for seat in seats)}"
    if any(seat.gpus for seat in seats):
        line += f", GPUs {' | '.join(str(seat.gpus) for seat in seats)}"
    if any(seat.gpu_numa is not None for seat in seats):
        line += f", NUMA nodes of their GPUs {' | '.join(str(seat.gpu_numa) for seat in seats)}"
    yield line
    far = [rank for rank, seat in there.items() if seat.gpu_numa is not None and seat.gpu_numa not in seat.numa]
    if far:
        yield f"{named(far)}: on other NUMA nodes than the GPUs: expected cores beside each rank's own"
    cores = len(set().union(*(seat.cpus for seat in seats)))
    if cores < len(there):
        yield f"{len(there)} ranks take turns on {count(cores, 'core')}: expected a core for each at least"


if __name__ == "__main__":
    main()
