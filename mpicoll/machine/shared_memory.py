"""Memory that the ranks of a node share. It has no name in the file system, so nothing is left when the ranks end.

Each rank makes a block of its own, near the cores that write it, and opens the other ranks' blocks through /proc, as it
opens torch's shared memory. That needs Linux, and ranks that may open each other's files.

Long files get huge pages, of which a processor must look up fewer. If Linux gives them none by itself, it makes them of
small pages where a program asks for that (MADV_COLLAPSE, from Linux 6.1 on)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.machine.linux import memory_file
from mpicoll.machine.system import free_memory, huge_pages

if TYPE_CHECKING:
    from mpi4py import MPI

Block = np.ndarray[Any, np.dtype[np.uint8]]

BUDGET = 192 << 20
"""The most bytes that a rank makes for all its communicators together. A communicator holds its memory until it is
freed, and a program may have hundreds of communicators."""
HUGE = 2 << 20  # bytes of a huge page
LEAST_HUGE = 2 * HUGE  # bytes of the shortest file that gets huge pages. From this length on, NumPy asks for them, too.
_NAME = "mpicoll-"
# Linux's numbers, which Python does not name.
_MADV_POPULATE_WRITE, _MADV_COLLAPSE = 23, 25
_MAP_FIXED = 0x10
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_MEANT = f"/memfd:{_NAME}", "/dev/shm/torch_"
"""How the names of files begin that may be opened: mpicoll's, and torch's. Some random digits follow."""


def share(comm: MPI.Intracomm, nbytes: int | None, bounded: bool = True) -> list[Block] | None:
    """A block of ``nbytes`` bytes of each rank, which all ranks map. Collective among ranks of one node.

    None, on all ranks, if a rank wants none (``nbytes`` is None there), if a rank cannot map a block, if a rank has
    used up its ``BUDGET`` for what is ``bounded``, or if a rank has MPICOLL_SHARED_MEMORY=0. What is not bounded is the
    program's, whose forked children may use it, too."""
    file = None
    if os.environ.get("MPICOLL_SHARED_MEMORY") == "0":
        nbytes = None
    if nbytes is not None and (not bounded or nbytes + sum(mapping.nbytes for mapping in list(_own)) <= BUDGET):
        file = new_file(nbytes)
    own = None if file is None else (os.getpid(), file, mark_of(os.getpid(), file))
    files: list[tuple[int, int, int] | None] = comm.allgather(own)
    mappings = []
    with suppress(OSError):
        mappings += [mapped(*f, nbytes, not bounded) for f in files if f is not None and nbytes is not None]
    all_mapped = all(comm.allgather(len(mappings) == comm.size))  # mpi4py's allreduce would make one more communicator
    if file is not None:
        os.close(file)  # all ranks have opened it
    if not all_mapped:
        return None
    if bounded:
        _own.add(mappings[comm.rank])
    return [np.asarray(mapping) for mapping in mappings]


def of_one_rank(nbytes: int | None) -> list[Block] | None:
    """The same for a rank that is alone. No other process opens it. So the system gives its pages when they are
    written, and it counts for no budget: a program may have a thousand communicators of one rank. None where ``share``
    shares nothing."""
    if nbytes is None or not hasattr(os, "memfd_create") or os.environ.get("MPICOLL_SHARED_MEMORY") == "0":
        return None
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return [np.frombuffer(memory, np.uint8)]


def new_file(nbytes: int) -> int | None:
    """A file in memory. None if the system refuses it, or has less memory than that."""
    try:
        file = memory_file(_NAME + os.urandom(8).hex())
    except OSError:
        return None
    if fill(file, nbytes):
        return file
    os.close(file)
    return None


kept_for_later: list[Callable[[], bool]] = []
"""What gives memory in files that this process does not use now back to the system. It returns whether there was any.
"""


def fill(file: int, nbytes: int) -> bool:
    """Allocate all memory of a file at once: if there were none for a page that is written later, the system would kill
    the process. Where memory is short, what is kept for later goes first. False if the system refuses it, or has less
    memory than that."""
    return _filled(file, nbytes) or (any(give_back() for give_back in kept_for_later) and _filled(file, nbytes))


def _filled(file: int, nbytes: int) -> bool:
    if nbytes >= HUGE:  # to look takes as long as to fill a short one
        free = free_memory()
        if free is not None and nbytes > free:
            return False
    try:
        os.ftruncate(file, nbytes)
        use_huge_pages(file, nbytes)
        os.posix_fallocate(file, 0, nbytes)
    except (OSError, OverflowError):  # the latter if a file cannot be so long
        return False
    return True


def mark_of(pid: int, file: int) -> int:
    """A number below 2**63, made of the name of a process's file, which is random. -1 if the file is none of those
    that may be opened. Raises OSError if there is no such file."""
    name = os.readlink(f"/proc/{pid}/fd/{file}")
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) >> 1 if name.startswith(_MEANT) else -1


def mapped(pid: int, file: int, mark: int, nbytes: int, inherited: bool = False) -> Mapping:
    """The block in another process's file. Raises OSError if it cannot be opened, or is not the file that was meant.
    ``inherited`` is Mapping's.

    In another namespace of processes, or once the other process has closed the file, the numbers mean another file. It
    may be a device, and to open that could change something. So this looks at the file's name before it opens it. To
    read beyond a file's end would kill this process."""
    if mark_of(pid, file) != mark:
        raise FileNotFoundError(errno.ENOENT, "the file is closed")
    other = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)
    try:
        if os.fstat(other).st_size < nbytes:
            raise OSError(errno.EINVAL, "the file is shorter")
        return Mapping(other, nbytes, inherited)
    finally:
        os.close(other)


class Lease:
    """Memory as NumPy takes it. When nothing refers to this any more, ``give_back`` is called. It holds its
    ``arguments`` until then."""

    def __init__(self, memory: Block, give_back: Callable[..., object], *arguments: object) -> None:
        self.__array_interface__ = memory.__array_interface__
        weakref.finalize(self, give_back, *arguments).atexit = False


class Mapping:
    """A file that is mapped into memory as long as anything refers to this object. Python's mmap would also keep a file
    open, and a forked child would keep the memory. Only if the memory is ``inherited``, a child may use it."""

    def __init__(self, file: int, nbytes: int, inherited: bool = False) -> None:
        self.address, self.nbytes = map_file(file, nbytes), nbytes
        weakref.finalize(self, _unmap, os.getpid(), self.address, nbytes).atexit = False
        if not inherited:
            _c.madvise(self.address, nbytes, mmap.MADV_DONTFORK)
        self.__array_interface__ = {"version": 3, "data": (self.address, False), "shape": (nbytes,), "typestr": "|u1"}


_own: weakref.WeakSet[Mapping] = weakref.WeakSet()
"""The mappings of the blocks that this rank has made that are bounded."""


def _unmap(process: int, address: int, nbytes: int) -> None:
    if os.getpid() == process:  # a forked child may have something else at this address
        unmap(address, nbytes)


def map_file(file: int, nbytes: int) -> int:
    """Map a file into memory, and return the address. That of a long file is a multiple of ``HUGE``: elsewhere, the
    processor would see a huge page as small ones. Raises OSError."""
    if nbytes < LEAST_HUGE:
        return _mapped(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file)
    start = _mapped(None, nbytes + HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    address = -(-start // HUGE) * HUGE
    try:
        _mapped(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, file)
    except OSError:
        unmap(start, nbytes + HUGE)
        raise
    end = address + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    unmap(start, address - start)
    unmap(end, start + nbytes + HUGE - end)
    return address


def unmap(address: int, nbytes: int) -> None:
    """Take so many bytes out of this process's memory."""
    _c.munmap(address, nbytes)


def use_huge_pages(file: int, nbytes: int) -> None:
    """Fill the file with huge pages as far as the system gives them, or put its small pages together. The rest of its
    memory is left to the caller. Raises OSError if the system has no memory."""
    setting = huge_pages("shmem_enabled")  # it says "never" on most systems
    if nbytes < LEAST_HUGE or setting in (None, "deny"):
        return
    address, whole = map_file(file, nbytes), nbytes // HUGE * HUGE
    try:
        if setting != "never" and _c.madvise(address, nbytes, mmap.MADV_HUGEPAGE) == 0:
            _c.madvise(address, nbytes, _MADV_POPULATE_WRITE)
        for at in range(0, whole, HUGE):
            os.posix_fallocate(file, at, 1)  # Linux makes no huge page of nothing
        _c.madvise(address, whole, _MADV_COLLAPSE)
    finally:
        unmap(address, nbytes)


def give_back(file: int, nbytes: int) -> bool:
    """Give a file's memory back: it keeps its length, and reads as zeros. False if the system does not take it."""
    return bool(_c.fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, 0, nbytes) == 0)


def _mapped(address: int | None, nbytes: int, protection: int, flags: int, file: int) -> int:
    found: int = _c.mmap(address, nbytes, protection, flags, file, 0)
    if found == _FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    return found


_c = ctypes.CDLL(None, use_errno=True)
_c.mmap.restype = ctypes.c_void_p
_FAILED = ctypes.c_void_p(-1).value
_c.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_c.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_c.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
if hasattr(_c, "fallocate"):  # of Linux, as are the files in memory that need it
    _c.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
