"""What the programs of this folder have in common: what they send, and how they begin."""

from __future__ import annotations

import numpy as np

import mpicoll

x, long = np.ones(6), np.ones(1 << 17)


def begun() -> mpicoll.Communicator:
    """A communicator that has made three calls."""
    comm = mpicoll.Communicator()
    for _ in range(3):
        comm.allreduce(x)
    return comm


def another(comm: mpicoll.Communicator) -> mpicoll.Communicator:
    """A new communicator of the same ranks."""
    made = comm.split(0)
    assert made is not None
    return made
