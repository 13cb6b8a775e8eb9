"""Where a benchmark runs, and what its times depend on: hardware, placement, versions. It names no host and no path."""

from __future__ import annotations

import os
import platform
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from mpi4py import MPI

import mpicoll
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.routes.node import meet
from mpicoll.launch.cores import oversubscribed
from mpicoll.machine.linux import cpu_name, cpus
from mpicoll.machine.mpi_library import library, takes_device_memory
from mpicoll.machine.system import huge_pages, overload, version_of
from mpicoll.units import ranges


@dataclass(frozen=True)
class Session:
    """The ranks of a benchmark, those of this rank's node, and the device that holds its buffers (as ``cuda:0``).
    ``sharing`` is the most ranks that have their buffers on one GPU."""

    world: MPI.Intracomm
    node: MPI.Comm
    device: str
    sharing: int = 1

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"


def open_session(world: MPI.Intracomm, device: str) -> Session:
    """A session over a duplicate of ``world``. The ranks of a node take its GPUs in turns."""
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    if device == "cpu":
        return Session(world.Dup(), node, "cpu")
    if find_spec("torch") is None:
        expected = "torch with CUDA to be installed for cuda"
        raise ArgumentError("bench", "--device", expected, "an environment without torch")
    import torch

    if not torch.cuda.is_available():
        raise ArgumentError("bench", "--device", "a CUDA GPU that torch can use, for cuda", "a machine without one")
    torch.cuda.set_device(node.rank % torch.cuda.device_count())
    # Two ranks that each see one GPU may see two different ones, or the same.
    gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    sharing = max(Counter(world.allgather(gpu)).values())
    return Session(world.Dup(), node, f"cuda:{torch.cuda.current_device()}", sharing)


def environment(session: Session) -> dict[str, Any]:
    world = session.world
    nodes = world.allreduce(int(session.node.rank == 0))
    torch: Any = sys.modules.get("torch")
    gpu = torch.cuda.get_device_properties(session.device) if session.on_gpu else None
    nccl = torch is not None and torch.cuda.is_available() and torch.distributed.is_nccl_available()
    return {
        "cpu": cpu_name() or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "nodes": nodes,
        "shared_memory": nodes == 1 and meet(world, False) is not None,
        "ranks": world.size,
        "binding": world.allgather(ranges(sorted(cpus()))),
        "overload": [*dict.fromkeys(filter(None, world.allgather(overload())))],
        "oversubscribed": oversubscribed(session.node),
        "huge_pages": huge_pages(),
        "gpus": [*dict(world.allgather((str(gpu.uuid), gpu.name))).values()] if gpu else [],
        "gpu_sharing": session.sharing if session.on_gpu else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "mpicoll": mpicoll.__version__,
        "mpi": library(),
        "mpi_standard": ".".join(map(str, MPI.Get_version())),
        "mpi_takes_gpu_memory": takes_device_memory() if session.on_gpu else None,
        "mpi4py": version_of("mpi4py"),
        "numpy": version_of("numpy"),
        "torch": version_of("torch"),
        "cuda": None if torch is None else torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
    }
