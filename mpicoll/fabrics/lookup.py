"""The fabric of a new Communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpicoll.fabrics.fabric import Fabric
from mpicoll.fabrics.thread_job import here
from mpicoll.launch import mpi_init

if TYPE_CHECKING:
    from mpi4py import MPI


def fabric_of(comm: MPI.Comm | Fabric | None) -> Fabric:
    """A fabric for a Communicator over ``comm``. If that is None, its ranks are those of the job of threads that this
    thread is in, or else those of MPI's world."""
    if isinstance(comm, Fabric):
        return comm
    if comm is None and here.seat is not None:
        from mpicoll.fabrics.threads import ThreadFabric

        return ThreadFabric.of(here.seat)
    mpi_init.checked_world()  # this also loads MPI, which the next line needs
    from mpicoll.fabrics.mpi import MPIFabric

    return MPIFabric.of_world() if comm is None else MPIFabric(comm)
