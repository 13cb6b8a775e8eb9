"""The cores of a node, in equal shares for its ranks. ``mpicoll run`` asks for that, and each rank binds itself to its
share before the program begins. Launchers do not agree: Open MPI, which is told to bind none here, binds each of two
ranks to one core, however many there are, and MPICH binds none."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

from mpicoll.launch.launch_env import rank_here, ranks_here
from mpicoll.machine.linux import bind, cpus
from mpicoll.machine.vendors import PLACES

if TYPE_CHECKING:
    from mpi4py import MPI

ORDER = "MPICOLL_CORES"  # the variable in which ``mpicoll run`` tells ranks to take their ``share``
_SYSTEM = Path("/sys/devices/system")
_FLAGS = re.compile(
    r"--?(bind-to|map-by|rank-by|cpu-set|cpu-list|cpus-per-(rank|proc)|npersocket|rankfile|rf|use-hwthread-cpus)\b.*"
    r"|(rmaps|hwloc)_\w+"
)


def places_ranks(flags: Sequence[str], variables: Iterable[str]) -> bool:
    """Whether these flags or environment variables of a launcher say themselves where ranks run."""
    return any(map(_FLAGS.fullmatch, flags)) or any(map(PLACES.fullmatch, variables))


def physical(cpus: Iterable[int]) -> list[list[int]]:
    """These CPUs as cores: the hardware threads of a core are together. Cores of a NUMA node are side by side."""
    cores: dict[tuple[int, str], list[int]] = {}
    for cpu in sorted(cpus):
        folder = _SYSTEM / f"cpu/cpu{cpu}"
        numa = min((int(node.name[4:]) for node in folder.glob("node[0-9]*")), default=0)
        siblings = folder / "topology/thread_siblings_list"
        cores.setdefault((numa, siblings.read_text() if siblings.exists() else str(cpu)), []).append(cpu)
    return [cores[key] for key in sorted(cores, key=lambda key: (key[0], cores[key]))]


def mine() -> list[list[int]]:
    """The cores that this process may use."""
    return physical(cpus())


def oversubscribed(comm: MPI.Comm) -> bool:
    """Whether these ranks of a node share CPUs, with each other or with others of the launcher's. Collective."""
    masks, here = zip(*comm.allgather((sum(1 << cpu for cpu in cpus()), ranks_here())), strict=True)
    all_cpus = reduce(or_, masks).bit_count()
    bound_apart = all_cpus == sum(mask.bit_count() for mask in masks) and max(here) <= (os.cpu_count() or 1)
    return not bound_apart and max(comm.size, *here) > all_cpus


def share(cores: Sequence[Sequence[int]], rank: int, ranks: int) -> set[int]:
    """The CPUs of this one of so many ranks. All of them if there are fewer cores than ranks, which then take turns."""
    if ranks > len(cores):
        rank, ranks = 0, 1
    first, end = (len(cores) * i // ranks for i in (rank, rank + 1))
    return {cpu for core in cores[first:end] for cpu in core}


def take() -> None:
    """Bind this process to its share of the node's cores, if it was told so. Set OMP_NUM_THREADS to the number of cores
    that each rank of the node has, if nobody has set it, and if the launcher says how many ranks there are."""
    order, ranks = os.environ.pop(ORDER, ""), ranks_here()
    cores = mine()
    threads = max(1, len(cores) // ranks)
    if "share" in order:
        bind(share(cores, rank_here(), ranks))
    elif len(cpus()) < (os.cpu_count() or 1):
        # The launcher has bound it, perhaps together with others.
        threads = max(1, min(len(cores), len(physical(range(os.cpu_count() or 1))) // ranks))
    if ranks > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
