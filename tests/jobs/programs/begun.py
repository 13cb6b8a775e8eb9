"""What the programs of this folder have in common: what they send, and how they begin."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

import mpicoll

x, long = np.ones(6), np.ones(1 << 17)


def begun() -> mpicoll.Communicator:
    """A communicator that has made three calls. Its timeout counts from now on, when all ranks are here."""
    comm = mpicoll.Communicator()
    timeout, comm.timeout = comm.timeout, 600
    for _ in range(3):
        comm.allreduce(x)
    MPI.COMM_WORLD.Barrier()
    comm.timeout = timeout
    return comm


def another(comm: mpicoll.Communicator) -> mpicoll.Communicator:
    """A new communicator of the same ranks."""
    made = comm.split(0)
    assert made is not None
    return made
