"""What a measurement depends on: hardware, placement of the ranks, versions. No host name and no path is in it."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

import mpicoll
from mpicoll.bench.session import Session
from mpicoll.fabrics.routes.node import meet
from mpicoll.launch.cores import oversubscribed
from mpicoll.machine.cpu import cpus, fingerprint
from mpicoll.machine.gpu import takes_device_memory
from mpicoll.machine.library import library
from mpicoll.machine.system import huge_pages, version_of
from mpicoll.units import ranges

_DRIVER = Path("/proc/driver/nvidia/version")


def environment(session: Session) -> dict[str, Any]:
    """The environment, alike on every rank. Collective."""
    world = session.world
    nodes = world.allreduce(int(session.node.rank == 0))
    bindings = world.allgather(ranges(sorted(cpus())))
    return {
        "cpu": _cpu(),
        "fingerprint": fingerprint(),
        "cores": os.cpu_count(),
        "nodes": nodes,
        "shared_memory": nodes == 1 and world.size > 1 and meet(world, False) is not None,
        "ranks": world.size,
        "binding": bindings,
        "oversubscribed": oversubscribed(session.node),
        "huge_pages": huge_pages(),
        "gpus": [*dict(world.allgather(_gpu(session))).values()] if session.on_gpu else [],
        "gpu_sharing": session.sharing if session.on_gpu else None,
        "driver": _driver(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "mpicoll": mpicoll.__version__,
        "mpi": library(),
        "mpi_standard": ".".join(map(str, MPI.Get_version())),
        "mpi_takes_gpu_memory": takes_device_memory() if session.on_gpu else None,
        "mpi4py": version_of("mpi4py"),
        "numpy": version_of("numpy"),
        "torch": version_of("torch"),
        "cuda": _cuda(),
        "nccl": _nccl(),
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as f:
            names = [line.partition(":")[2].strip() for line in f if line.startswith(("model name", "Model"))]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _gpu(session: Session) -> tuple[str, str]:
    """What no other GPU is called, and the name of its model."""
    import torch

    found = torch.cuda.get_device_properties(session.device)
    return str(found.uuid), found.name


def _driver() -> str | None:
    """The version of NVIDIA's kernel driver."""
    try:
        found = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", _DRIVER.read_text())
    except OSError:
        return None
    return found[1] if found else None


def _cuda() -> str | None:
    """The CUDA that torch was built for."""
    torch: Any = sys.modules.get("torch")
    return None if torch is None else torch.version.cuda


def _nccl() -> str | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))
