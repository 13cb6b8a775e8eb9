"""The machine under a rank: what is installed, memory that can be shared, huge pages, and limits."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from mpicoll.doctor.finding import Finding
from mpicoll.launch.launch_env import RANK
from mpicoll.machine.cpu import cpus, fingerprint
from mpicoll.machine.folders import home
from mpicoll.machine.system import free_memory, huge_pages, version_of
from mpicoll.node.loaded import missing

_SHM = "/dev/shm"
_SHM_OF_A_RANK = 8 << 20
"""Bytes that an MPI library may want in /dev/shm for each rank. The wheel of MPICH 5.0 takes 5 MiB."""
_LOCKED = 1 << 30
"""Bytes that a network card with remote memory access may want to lock for a rank."""
_FILES = 1024
"""Files that a process may open on most systems."""
VARIABLES = {
    f"MPICOLL_{name}"
    for name in (
        "ALGORITHM", "CHECK", "CHECK_NAN", "TIMEOUT", "DUMP", "TRACE", "WATCH", "SHARED_MEMORY", "DDP_OVERLAP", "SHARE",
        "REPRODUCIBLE", "CORES", "ELASTIC",
        "LAST_CALLS", "RANK", "STDIN", "BENCH_STOP", "BENCH_TERMINAL", "ENV", "MODULES", "SLURM",
    )
}  # fmt: skip
"""mpicoll's environment variables."""
_ALIKE = 0.85
"""Names that are so much alike, or more, are taken for one that was misspelt."""
_PACKAGES = ("mpicoll", "mpi4py", "numpy", "torch")


@dataclass(frozen=True)
class Machine:
    """What a process sees of its machine. A number or a text is None where the system does not say it; ``locked`` also
    where there is no limit."""

    node: str
    cpu: str
    cores: tuple[int, ...]
    """The CPUs that the process may use."""
    omp_threads: int | None
    """OMP_NUM_THREADS."""
    memory: int | None
    """Bytes of memory that are free."""
    shm_size: int | None
    shm_free: int | None
    locked: int | None
    """Bytes that the process may lock in memory."""
    files: int
    """Files that the process may open."""
    rdma: bool
    """Whether there is a network card with remote memory access."""
    huge_pages: str | None
    shared_huge_pages: str | None
    kernel: str
    """Why mpicoll has no kernel here. Empty where it has one."""
    versions: dict[str, str | None]
    variables: dict[str, str]
    """mpicoll's own environment variables."""
    home: bool = True
    """Whether the user has one."""


def look() -> Machine:
    """What this process sees."""
    size, free = _shm()
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return Machine(
        node=platform.node(),
        cpu=fingerprint(),
        cores=tuple(sorted(cpus())),
        omp_threads=int(threads) if threads.isdecimal() else None,
        memory=free_memory(),
        shm_size=size,
        shm_free=free,
        locked=None if locked == resource.RLIM_INFINITY else locked,
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        rdma=any(Path("/sys/class/infiniband").glob("*")),
        huge_pages=huge_pages(),
        shared_huge_pages=huge_pages("shmem_enabled"),
        kernel=missing,
        versions={"python": platform.python_version(), **{name: version_of(name) for name in _PACKAGES}},
        variables={k: v for k, v in sorted(os.environ.items()) if k.startswith("MPICOLL_") and k != RANK},
        home=home() is not None,
    )


def _shm() -> tuple[int | None, int | None]:
    """The size of /dev/shm, and what is free of it."""
    try:
        found = os.statvfs(_SHM)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def judge(m: Machine, ranks_here: int, nodes: int) -> Iterator[Finding]:
    """What there is to say of a rank's machine, where ``ranks_here`` ranks run on its node, and others on other
    ``nodes``."""
    yield _judge_kernel(m)
    if m.memory is not None:
        free = m.memory >> 30 << 30 or m.memory  # whole GiB, of which all ranks of a node see as many
        yield Finding("memory", "ok", f"{_rounded(free)} are free")
    yield _judge_shm(m, ranks_here)
    yield _judge_locked(m, nodes)
    yield _judge_files(m)
    yield _judge_pages(m)
    if not m.home:
        text = "this user has no home: HOME is not set, and the system's list of users does not have the user"
        yield Finding("settings", "warning", text, "Set HOME. Open MPI starts without it by `mpicoll run` alone")
    for name in sorted(m.variables.keys() - VARIABLES):
        if nearest := get_close_matches(name, VARIABLES, 1, _ALIKE):
            text = f"nobody reads {name} (did you mean {nearest[0]}?)"
            yield Finding("settings", "warning", text, "Correct the name, or unset it")


def _judge_kernel(m: Machine) -> Finding:
    if not m.kernel:
        return Finding("kernel", "ok", "mpicoll's own collectives serve the ranks of a node")
    remedy = "Install a C compiler and Python's headers (Debian: gcc, python3-dev), then install mpicoll again"
    return Finding("kernel", "warning", f"{m.kernel}: collectives of a node are the MPI library's", remedy)


def _judge_shm(m: Machine, ranks_here: int) -> Finding:
    if m.shm_size is None or m.shm_free is None:
        remedy = "Mount a tmpfs there: MPI libraries pass messages between ranks of a node through it"
        return Finding("/dev/shm", "warning", "there is none", remedy)
    text = f"{_rounded(m.shm_size)}, of which {_rounded(m.shm_free)} are free"
    remedy = "Delete what earlier jobs have left in /dev/shm, or give it more memory (docker run --shm-size=1g)"
    if m.shm_free < 1 << 20:
        return Finding("/dev/shm", "problem", f"{text}: an MPI library that finds no room there may crash", remedy)
    if m.shm_free < ranks_here * _SHM_OF_A_RANK:
        wanted = _rounded(ranks_here * _SHM_OF_A_RANK)
        return Finding("/dev/shm", "warning", f"{text}: expected {wanted} for the node's ranks", remedy)
    return Finding("/dev/shm", "ok", text)


def _judge_locked(m: Machine, nodes: int) -> Finding:
    if m.locked is None:
        return Finding("locked memory", "ok", "no limit (ulimit -l)")
    text = f"at most {_rounded(m.locked)} (ulimit -l)"
    if not m.rdma or m.locked >= _LOCKED:
        return Finding("locked memory", "ok", text)
    remedy = "Remove the limit: `ulimit -l unlimited`, memlock in limits.conf, or LimitMEMLOCK=infinity of slurmd"
    text += ", too little for the node's InfiniBand or RoCE cards"
    return Finding("locked memory", "problem" if nodes > 1 else "warning", text, remedy)


def _judge_files(m: Machine) -> Finding:
    text = f"at most {m.files} (ulimit -n)"
    if m.files >= _FILES:
        return Finding("open files", "ok", text)
    remedy = f"Raise the limit: `ulimit -n {_FILES}`"
    return Finding("open files", "warning", f"{text}: connections to other ranks are files, too", remedy)


def _judge_pages(m: Machine) -> Finding:
    text = f"{m.huge_pages or 'not supported'}; in shared memory: {m.shared_huge_pages or 'not supported'}"
    if m.huge_pages != "never":
        return Finding("huge pages", "ok", text)
    remedy = "As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return Finding("huge pages", "warning", f"{text}: copies of long arrays take longer", remedy)


def _rounded(n: int) -> str:
    if n < 1 << 20:
        return f"{n >> 10} KiB"
    return f"{n >> 20} MiB" if n < 10 << 30 else f"{n >> 30} GiB"
