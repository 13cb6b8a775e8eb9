"""Memory that the ranks of a node share, without a name that could outlive them.

Each rank makes its own block, so that it lies near the cores that write it, and opens the others' by way of /proc.
Needs Linux; where ranks cannot see each other's files (containers of their own, other users) there is none.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["share"]

Block = np.ndarray[Any, np.dtype[np.uint8]]

BUDGET = 32 << 20
"""Bytes that a rank makes for all its communicators together, at most: what is made for one is held until it is freed,
and a program may have hundreds."""
_NAME = "mpicoll"
_MARK = 16
"""Random bytes at a block's end: a process of that number in another namespace has another file."""


def share(comm: MPI.Intracomm, nbytes: int) -> list[Block] | None:
    """A block of so many bytes a rank, which all ranks map; None where they cannot, or where one of them has made as
    much as its ``BUDGET`` permits, or has MPICOLL_SHARED_MEMORY=0. Collective among ranks of one node."""
    file, mark = None, os.urandom(_MARK)
    wanted = os.environ.get("MPICOLL_SHARED_MEMORY") != "0" and hasattr(os, "memfd_create")
    if wanted and nbytes + sum(each.nbytes for each in list(_own)) <= BUDGET:
        file = _new(nbytes, mark)
    told = comm.allgather(None if file is None else (os.getpid(), file, mark))
    mapped = [None if it is None else _mapped(it[0], it[1], it[2], nbytes) for it in told]
    found = [mapping for mapping in mapped if mapping is not None]
    agreed = comm.allreduce(len(found) == comm.size, MPI.LAND)
    if file is not None:
        os.close(file)  # all have opened it
    if not agreed:
        return None
    _own.add(found[comm.rank])
    return [np.asarray(mapping) for mapping in found]


def _new(nbytes: int, mark: bytes) -> int | None:
    """A file in memory, all of it allocated now: what the system refuses can be told, and a page missed later kills."""
    try:
        file = os.memfd_create(_NAME)
    except OSError:
        return None
    try:
        os.posix_fallocate(file, 0, nbytes + _MARK)
        os.pwrite(file, mark, nbytes)
    except OSError:
        os.close(file)
        return None
    return file


def _mapped(pid: int, file: int, mark: bytes, nbytes: int) -> _Mapping | None:
    """The block in another process's file, if it is that: in another namespace of processes, that number is of another
    process, whose file may be shorter (to read beyond it kills) or no file at all (to open it may do something)."""
    path = f"/proc/{pid}/fd/{file}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            return None
        with open(path, "r+b", buffering=0) as other:
            ours = os.pread(other.fileno(), _MARK, nbytes) == mark
            return _Mapping(other.fileno(), nbytes) if ours else None
    except OSError:
        return None


class _Mapping:
    """A file mapped into memory, until nothing refers to it. Python's own mapping would keep a file open besides, and a
    forked child this memory."""

    def __init__(self, file: int, nbytes: int) -> None:
        address = _c.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        self.nbytes = nbytes
        weakref.finalize(self, _unmap, os.getpid(), address, nbytes).atexit = False
        _c.madvise(address, nbytes, mmap.MADV_DONTFORK)
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (nbytes,), "typestr": "|u1"}


_own: weakref.WeakSet[_Mapping] = weakref.WeakSet()
"""The memory of the blocks that this rank has made."""


def _unmap(process: int, address: int, nbytes: int) -> None:
    if os.getpid() == process:  # a forked child may have something else there
        _c.munmap(address, nbytes)


_c = ctypes.CDLL(None, use_errno=True)
_c.mmap.restype = ctypes.c_void_p
_c.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_c.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_c.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
