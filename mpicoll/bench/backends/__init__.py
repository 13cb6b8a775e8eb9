"""The ways of calling that are compared. A new one is a file with an ``open`` and a line in :data:`OPEN`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from mpi4py import MPI

from mpicoll.bench.memory import Slot
from mpicoll.bench.rules import Case

__all__ = ["Backend", "Session", "Unavailable", "open_backend"]


class Unavailable(Exception):
    """A backend, or one case of it, cannot run here. Says why, in words for the table."""


@dataclass(frozen=True)
class Session:
    """Where a benchmark runs: its ranks, those of this rank's node, and the device of its memory (as ``cuda:0``)."""

    world: MPI.Intracomm
    node: MPI.Comm
    device: str

    @property
    def one_node(self) -> bool:
        return self.node.size == self.world.size

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"


class Backend(Protocol):
    """One way of calling collectives."""

    def bind(self, slot: Slot) -> Callable[[], object]:
        """The call of ``slot.case`` on its buffers, with nothing left to look up. Raises Unavailable."""

    def route(self, case: Case) -> str:
        """What carries the call out, as the backend knows it."""

    def close(self) -> None:
        """Give back what the backend holds."""


OPEN = {
    "mpicoll": "communicator",
    "mpi": "mpi",
    "mpicoll.torch": "torchlike:open_mpicoll",
    "torch": "torchlike:open_torch",
    "gloo": "torchlike:open_gloo",
    "nccl": "torchlike:open_nccl",
}


def open_backend(line: str, session: Session) -> Backend:
    """The backend of a line of the table, ``name`` or ``name:algorithm``. Collective; raises Unavailable."""
    name, _, algorithm = line.partition(":")
    module, _, function = OPEN[name].partition(":")
    opened: Backend = getattr(import_module(f"{__name__}.{module}"), function or "open")(session, algorithm or None)
    return opened
