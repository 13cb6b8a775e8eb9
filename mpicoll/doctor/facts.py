"""The facts of a rank: how it was started, what it sees of its machine and its GPUs, and what MPI says to it."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mpicoll.errors import LaunchError
from mpicoll.launch.cores import numa_nodes
from mpicoll.launch.launch_env import RANK, launched_rank, rank_here, started_as, under_launcher
from mpicoll.machine.cpu import cpus, fingerprint
from mpicoll.machine.linux import SHARES
from mpicoll.machine.system import free_memory, home, huge_pages, overload, version_of
from mpicoll.machine.vendors import RANK_VARIABLES, VENDORS
from mpicoll.node.loaded import missing
from mpicoll.probe.child import SECONDS, SECONDS_OF_ALL_JOBS, ask

TRIES = SECONDS_OF_ALL_JOBS + SECONDS
"""How many seconds it may take to find out what MPI does with GPU memory. The other ranks wait for that in MPI."""
SIZES = {8: "8 bytes", 64 << 10: "64 KiB", 16 << 20: "16 MiB"}
"""The all-reduces whose algorithm the doctor names."""
_PACKAGES = ("mpicoll", "mpi4py", "numpy", "torch")
_GPUS, _BUS = Path("/proc/driver/nvidia/gpus"), Path("/sys/bus/pci/devices")


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
    if "PMIX_NAMESPACE" in os.environ or "PMIX_RANK" in os.environ:
        return "PMIx"
    return "PMI" if launched_rank() is not None else None


def _number(variable: str) -> int | None:
    """The first number of a variable; None where it has none."""
    text = os.environ.get(variable, "").partition(",")[0].strip()
    return int(text) if text.isdecimal() else None


@dataclass(frozen=True)
class Start:
    """How a process was started, as its environment says it."""

    launcher: str | None = field(default_factory=_launcher)
    pmi: str | None = field(default_factory=_pmi)
    """The interface through which the launcher tells ranks how to find each other."""
    number: int | None = field(default_factory=lambda: started_as()[0])
    """The number of this process among those that were started together."""
    together: int = field(default_factory=lambda: started_as()[1])
    """How many processes were started together."""
    tasks: int | None = field(default_factory=partial(_number, "SLURM_NTASKS"))
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


def _variables() -> dict[str, str]:
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith("MPICOLL_") and k != RANK}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a process sees of its machine. A number or a text is None where the system does not say it; ``locked`` also
    where there is no limit."""

    node: str = field(default_factory=platform.node)
    linux: bool = SHARES
    """Whether the system has memory that mpicoll's ranks can share, as Linux has."""
    cpu: str = field(default_factory=fingerprint)
    cores: tuple[int, ...] = field(default_factory=lambda: tuple(sorted(cpus())))
    """The CPUs that the process may use."""
    overload: str = field(default_factory=overload)
    """What leaves the process less time than its cores have."""
    omp_threads: int | None = field(default_factory=partial(_number, "OMP_NUM_THREADS"))
    memory: int | None = field(default_factory=free_memory)
    """Bytes of memory that are free."""
    shm_size: int | None = field(default_factory=partial(_of_shm, "f_blocks"))
    shm_free: int | None = field(default_factory=partial(_of_shm, "f_bavail"))
    locked: int | None = field(default_factory=_locked)
    """Bytes that the process may lock in memory."""
    files: int = field(default_factory=lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    """Files that the process may open."""
    rdma: bool = field(default_factory=lambda: any(Path("/sys/class/infiniband").glob("*")))
    """Whether there is a network card with remote memory access."""
    huge_pages: str | None = field(default_factory=lambda: huge_pages())
    shared_huge_pages: str | None = field(default_factory=lambda: huge_pages("shmem_enabled"))
    kernel: str = missing
    """Why mpicoll has no kernel here. Empty where it has one."""
    versions: dict[str, str | None] = field(default_factory=_versions)
    variables: dict[str, str] = field(default_factory=_variables)
    """mpicoll's own environment variables."""
    home: bool = field(default_factory=lambda: home() is not None)
    """Whether the user has one."""


@dataclass(frozen=True)
class Gpu:
    """What the driver, torch and MPI answered. ``failed`` has the questions that brought no answer, and what happened
    instead. What depends on such an answer, or was not asked because there is no GPU, is None."""

    driver: str | None = None
    """The newest CUDA that the driver supports."""
    devices: tuple[str, ...] = ()
    error: int = 0
    """CUDA's error number, if the driver does not work."""
    torch_cuda: str | None = None
    """The CUDA for which torch was built."""
    torch_works: bool | None = None
    """Whether torch can use a GPU."""
    nccl: str | None = None
    mpi_takes: bool | None = None
    """Whether the MPI library reports support for GPU memory."""
    paths: tuple[tuple[str, str], ...] = ()
    """What is wrong with each path on which MPI may take GPU memory, nothing if it works. Empty where it was not tried:
    one rank of each node tries it."""
    kept: str = ""
    """The file that keeps it."""
    failed: tuple[tuple[str, str], ...] = ()
    segments: str = ""
    """The variable that lets torch allocate expandable segments, empty if none does."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES."""
    numa: int | None = None
    """The NUMA node of the GPU that the rank takes."""
    far: bool = False
    """Whether the rank has no core on that NUMA node."""


def gpu_here() -> Gpu:
    """Ask the driver, and if it shows a GPU, torch and MPI."""
    failed: list[tuple[str, str]] = []

    def answer(question: str, seconds: float = SECONDS) -> dict[str, Any]:
        """What a child process answers. Nothing if there is no answer: then ``failed`` gets the reason."""
        try:
            return ask(f"mpicoll.probe.questions:of_{question}", seconds)
        except LaunchError as e:
            failed.append((question, e.problem))
            return {}

    driver, torch, mpi, tries = answer("driver"), {}, {}, {}
    if driver.get("devices"):
        torch = answer("torch") if version_of("torch") else {}
        mpi = answer("mpi")
    if mpi.get("takes") and torch.get("available") and not rank_here():
        tries = answer("paths", TRIES)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    numa = numa_of(visible, rank_here())
    return Gpu(
        driver=driver.get("version"),
        devices=tuple(driver.get("devices", ())),
        error=driver.get("error", 0),
        torch_cuda=torch.get("cuda"),
        torch_works=torch.get("available"),
        nccl=torch.get("nccl"),
        mpi_takes=mpi.get("takes"),
        paths=tuple(tries.get("paths", {}).items()),
        kept=tries.get("file", ""),
        failed=tuple(failed),
        segments=_expandable_segments(),
        visible=visible,
        numa=numa,
        far=numa is not None and numa not in numa_nodes(cpus()),
    )


def numa_of(visible: str | None, rank: int) -> int | None:
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


def _expandable_segments() -> str:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "expandable_segments:true" in os.environ.get(name, "").replace(" ", "").lower():
            return name
    return ""


@dataclass(frozen=True)
class World:
    """What MPI, once it runs, says to a rank. ``chosen`` has the algorithms of some all-reduces: the bytes, the name,
    and why. ``refused`` says why they are unknown."""

    rank: int
    size: int
    library: str
    threads: str
    """The level of support for threads: MULTIPLE, or less."""
    shares: bool
    """Whether the ranks of this node can share memory."""
    reads: bool
    """Whether this process may read the memory of another one."""
    shares_memory: bool = False
    """Whether collectives are carried out where arrays lie in memory that the ranks share."""
    chosen: tuple[tuple[int, str, str], ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Facts:
    """All that is known of a rank. ``world`` is None where MPI has not started."""

    start: Start = field(default_factory=Start)
    machine: Machine = field(default_factory=Machine)
    gpu: Gpu = field(default_factory=gpu_here)
    world: World | None = None
    ranks_here: int = 1
    """How many ranks run on its node."""
    nodes: int = 1
    """How many nodes the ranks have."""

    @property
    def rank(self) -> int:
        return (self.start.number or 0) if self.world is None else self.world.rank
