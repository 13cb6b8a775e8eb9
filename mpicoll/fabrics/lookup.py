"""Which fabric a Communicator is made over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpicoll.fabrics.fabric import Fabric
from mpicoll.fabrics.job import here
from mpicoll.launch import lifetime

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["fabric_of"]


def fabric_of(comm: MPI.Intracomm | Fabric | None) -> Fabric:
    """A fabric of its own over ``comm``; None is the ranks of this thread's job of threads, or else MPI's world."""
    if isinstance(comm, Fabric):
        return comm
    if comm is None and here.seat is not None:
        from mpicoll.fabrics.threads import ThreadFabric

        return ThreadFabric.of(here.seat)
    world = lifetime.checked_world()  # loads MPI, which the rest needs
    from mpicoll.fabrics.mpi import MPIFabric

    return MPIFabric(world if comm is None else comm)
