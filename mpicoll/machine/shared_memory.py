"""Memory that the ranks of a node share, without a name that could outlive them.

Each rank makes its own block, so that it lies near the cores that write it, and opens the others' by way of /proc.
Needs Linux; where ranks cannot see each other's files (containers of their own, other users) there is none.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["share"]

Block = np.ndarray[Any, np.dtype[np.uint8]]

_MARK = 16
"""Random bytes at a block's end: a process of that number in another namespace has another file."""


def share(comm: MPI.Intracomm, nbytes: int) -> list[Block] | None:
    """A block of so many bytes a rank, which all ranks map; None where they cannot, or one of them has
    MPICOLL_SHARED_MEMORY=0. Collective among ranks of one node."""
    file, mark = None, os.urandom(_MARK)
    if os.environ.get("MPICOLL_SHARED_MEMORY") != "0" and hasattr(os, "memfd_create"):
        file = _new(nbytes, mark)
    told = comm.allgather(None if file is None else (os.getpid(), file, mark))
    mapped = [None if it is None else _mapped(it[0], it[1], it[2], nbytes) for it in told]
    found = [block for block in mapped if block is not None]
    agreed = comm.allreduce(len(found) == comm.size, MPI.LAND)
    if file is not None:
        os.close(file)  # all have opened it
    return found if agreed else None


def _new(nbytes: int, mark: bytes) -> int | None:
    """A file in memory, all of it allocated: a page that cannot be had later would kill the rank."""
    try:
        file = os.memfd_create("mpicoll")
    except OSError:
        return None
    try:
        os.posix_fallocate(file, 0, nbytes + _MARK)
        os.pwrite(file, mark, nbytes)
    except OSError:
        os.close(file)
        return None
    return file


def _mapped(pid: int, file: int, mark: bytes, nbytes: int) -> Block | None:
    try:
        with open(f"/proc/{pid}/fd/{file}", "r+b", buffering=0) as other:
            memory = mmap.mmap(other.fileno(), nbytes + _MARK)
    except (OSError, ValueError):
        return None
    return np.frombuffer(memory, np.uint8, nbytes) if memory[nbytes:] == mark else None
