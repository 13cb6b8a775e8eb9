"""Where a benchmark runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from mpi4py import MPI

from mpicoll.errors import ArgumentError


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
        raise ArgumentError(
            "bench", "--device", "torch with CUDA to be installed for cuda", "an environment without torch"
        )
    import torch

    if not torch.cuda.is_available():
        raise ArgumentError("bench", "--device", "a CUDA GPU that torch can use, for cuda", "a machine without one")
    torch.cuda.set_device(node.rank % torch.cuda.device_count())
    # Two ranks that each see one GPU may see two different ones, or the same.
    gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return Session(world.Dup(), node, f"cuda:{torch.cuda.current_device()}", most_alike(world.allgather(gpu)))


def most_alike(gpus: Sequence[str]) -> int:
    """How often the commonest of the ranks' GPUs is there."""
    return max(Counter(gpus).values())
