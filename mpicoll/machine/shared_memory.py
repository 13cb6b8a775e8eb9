"""Memory that the ranks of a node share. It has no name in the file system, so nothing is left when the ranks end.

Each rank makes a block of its own, near the cores that write it, and opens the other ranks' blocks through /proc. That
needs Linux. There is no such memory where ranks cannot open each other's files, such as in separate containers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.machine.system import huge_pages

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Block", "Mapping", "mapped", "new_file", "share"]

Block = np.ndarray[Any, np.dtype[np.uint8]]

BUDGET = 32 << 20
"""The most bytes that a rank makes for all its communicators together. A communicator holds its memory until it is
freed, and a program may have hundreds of communicators."""
HUGE = 2 << 20
"""Bytes of a huge page."""
_MADV_POPULATE_WRITE = 23
"""Linux's number, which Python does not name."""
_NAME = "mpicoll"
_MARK = 16
"""The number of random bytes at a block's end, by which ranks recognise the block. In another namespace of processes,
the same process and file numbers mean another file."""


def share(comm: MPI.Intracomm, nbytes: int) -> list[Block] | None:
    """A block of ``nbytes`` bytes of each rank, which all ranks map. Collective among ranks of one node.

    None, on all ranks, if a rank cannot map a block, if a rank has used up its ``BUDGET``, or if a rank has
    MPICOLL_SHARED_MEMORY=0."""
    file, mark = None, os.urandom(_MARK)
    wanted = os.environ.get("MPICOLL_SHARED_MEMORY") != "0"
    if wanted and nbytes + sum(mapping.nbytes for mapping in list(_own)) <= BUDGET:
        file = new_file(nbytes, mark)
    files: list[tuple[int, int, bytes] | None] = comm.allgather(None if file is None else (os.getpid(), file, mark))
    mappings = [m for f in files if f is not None and (m := mapped(*f, nbytes)) is not None]
    all_mapped = all(comm.allgather(len(mappings) == comm.size))  # mpi4py's allreduce would make one more communicator
    if file is not None:
        os.close(file)  # all ranks have opened it
    if not all_mapped:
        return None
    _own.add(mappings[comm.rank])
    return [np.asarray(mapping) for mapping in mappings]


def new_file(nbytes: int, mark: bytes) -> int | None:
    """A file in memory, or None if the system refuses it. All its memory is allocated at once: if there were none for a
    page that is written later, the system would kill the process."""
    try:
        file = os.memfd_create(_NAME)
    except OSError:
        return None
    try:
        os.ftruncate(file, nbytes + _MARK)
        if nbytes >= HUGE:
            _use_huge_pages(file, nbytes)
        os.posix_fallocate(file, 0, nbytes + _MARK)
        os.pwrite(file, mark, nbytes)
    except OSError:
        os.close(file)
        return None
    return file


def _use_huge_pages(file: int, nbytes: int) -> None:
    """Fill the file with huge pages, if the system allows that: then it takes less time to find an address's page. To
    fill it with small pages is left to the caller."""
    if huge_pages("shmem_enabled") in (None, "never", "deny"):
        return
    address = _c.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    if address != _FAILED:
        if _c.madvise(address, nbytes, mmap.MADV_HUGEPAGE) == 0:
            _c.madvise(address, nbytes, _MADV_POPULATE_WRITE)
        _c.munmap(address, nbytes)


def mapped(pid: int, file: int, mark: bytes, nbytes: int) -> Mapping | None:
    """The block in another process's file; None if that is not the file that was meant.

    In another namespace of processes the numbers mean another file. It may be shorter, and to read beyond its end would
    kill this process. It may be a device, and to open that could change something. So this looks at the file's name
    before it opens the file, and at the mark before it maps it."""
    path = f"/proc/{pid}/fd/{file}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            return None
        with open(path, "r+b", buffering=0) as other:
            ours = os.pread(other.fileno(), _MARK, nbytes) == mark
            return Mapping(other.fileno(), nbytes) if ours else None
    except OSError:
        return None


class Mapping:
    """A file that is mapped into memory as long as anything refers to this object. Python's mmap would also keep a file
    open, and a forked child would keep the memory. Only if the memory is ``inherited``, a child may use it."""

    def __init__(self, file: int, nbytes: int, inherited: bool = False) -> None:
        address = _c.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        self.nbytes = nbytes
        weakref.finalize(self, _unmap, os.getpid(), address, nbytes).atexit = False
        if not inherited:
            _c.madvise(address, nbytes, mmap.MADV_DONTFORK)
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (nbytes,), "typestr": "|u1"}


_own: weakref.WeakSet[Mapping] = weakref.WeakSet()
"""The mappings of the blocks that this rank has made."""


def _unmap(process: int, address: int, nbytes: int) -> None:
    if os.getpid() == process:  # a forked child may have something else at this address
        _c.munmap(address, nbytes)


_c = ctypes.CDLL(None, use_errno=True)
_c.mmap.restype = ctypes.c_void_p
_FAILED = ctypes.c_void_p(-1).value
_c.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_c.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_c.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
