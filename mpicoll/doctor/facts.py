"""The facts of a rank: how it was started, what it sees of its machine, and what MPI says to it."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mpicoll.doctor.gpu import Gpu, gpu_here
from mpicoll.launch.launch_env import RANK, launched_rank, number_in, started_as, under_launcher
from mpicoll.machine.linux import SHARES, cpu_name, cpus
from mpicoll.machine.system import overload, version_of
from mpicoll.machine.vendors import RANK_VARIABLES, VENDORS
from mpicoll.node.loaded import missing

SIZES = {8: "8 bytes", 64 << 10: "64 KiB", 16 << 20: "16 MiB"}  # the all-reduces whose algorithm the doctor names
_PACKAGES = "mpicoll", "mpi4py", "numpy", "torch"


def _launcher() -> str | None:
    for told in RANK_VARIABLES:
        if told.local_size in os.environ:
            names = {vendor.name: None for vendor in VENDORS if vendor.ranks == told}
            return f"the launcher of {' or '.join(names)}"
    if os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        return "srun"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    return "a launcher with PMI" if under_launcher() else None


def _pmi() -> str | None:
    pmix = "PMIX_NAMESPACE" in os.environ or "PMIX_RANK" in os.environ
    return "PMIx" if pmix else "PMI" if launched_rank() is not None else None


@dataclass(frozen=True)
class Start:
    """How a process was started, as its environment says it."""

    launcher: str | None = field(default_factory=_launcher)
    pmi: str | None = field(default_factory=_pmi)
    """The interface through which the launcher tells ranks how to find each other."""
    number: int | None = field(default_factory=lambda: started_as()[0])
    """The number of this process among those that were started together."""
    together: int = field(default_factory=lambda: started_as()[1])  # how many processes were started together
    tasks: int | None = field(default_factory=partial(number_in, "SLURM_NTASKS"))
    """The ranks for which Slurm has allocated the job."""


def _of_shm(part: str) -> int | None:
    """Bytes of /dev/shm: of all its blocks, or of those that are free."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    blocks: int = getattr(found, part)
    return blocks * found.f_frsize


def _locked() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _versions() -> dict[str, str | None]:
    return {"python": platform.python_version(), **{name: version_of(name) for name in _PACKAGES}}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a process sees of its machine: None where the system does not say it, or has no limit (``locked``)."""

    node: str = field(default_factory=platform.node)
    linux: bool = SHARES  # whether the system has memory that mpicoll's ranks can share, as Linux has
    cpu: str = field(default_factory=lambda: cpu_name() or "unknown")
    cores: tuple[int, ...] = field(default_factory=lambda: tuple(sorted(cpus())))  # the CPUs that the process may use
    overload: str = field(default_factory=overload)  # what leaves the process less time than its cores have
    omp_threads: int | None = field(default_factory=partial(number_in, "OMP_NUM_THREADS"))
    shm_size: int | None = field(default_factory=partial(_of_shm, "f_blocks"))
    shm_free: int | None = field(default_factory=partial(_of_shm, "f_bavail"))
    locked: int | None = field(default_factory=_locked)  # bytes that the process may lock in memory
    rdma: bool = field(default_factory=lambda: any(Path("/sys/class/infiniband").glob("*")))
    """Whether there is a network card with remote memory access."""
    kernel: str = missing
    """Why mpicoll has no kernel here. Empty where it has one."""
    versions: dict[str, str | None] = field(default_factory=_versions)
    variables: dict[str, str] = field(
        default_factory=lambda: {k: v for k, v in sorted(os.environ.items()) if k.startswith("MPICOLL_") and k != RANK}
    )
    """mpicoll's own environment variables."""


@dataclass(frozen=True)
class World:
    """What MPI, once it runs, says to a rank. ``chosen`` has the algorithms of some all-reduces: the bytes, the name,
    and why. ``refused`` says why they are unknown."""

    rank: int
    size: int
    library: str
    threads: str  # the level of support for threads: MULTIPLE, or less
    shares: bool  # whether the ranks of this node can share memory
    shares_memory: bool = False  # whether collectives are carried out where arrays lie in memory that the ranks share
    chosen: tuple[tuple[int, str, str], ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Facts:
    """All that is known of a rank. ``world`` is None where MPI has not started. Its node has ``ranks_here``."""

    start: Start = field(default_factory=Start)
    machine: Machine = field(default_factory=Machine)
    gpu: Gpu = field(default_factory=gpu_here)
    world: World | None = None
    ranks_here: int = 1
    nodes: int = 1

    @property
    def rank(self) -> int:
        return (self.start.number or 0) if self.world is None else self.world.rank
