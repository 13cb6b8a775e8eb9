"""Memory that the ranks of a node share. It has no name in the file system, so nothing is left when the ranks end.

Each rank makes a block of its own, near the cores that write it, and opens the other ranks' blocks through /proc. That
needs Linux. There is no such memory where ranks cannot open each other's files, such as in separate containers. torch's
own shared memory is opened in the same way.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.machine.pages import HUGE, keep_from_children, map_file, unmap, use_huge_pages
from mpicoll.machine.system import free_memory

if TYPE_CHECKING:
    from mpi4py import MPI

Block = np.ndarray[Any, np.dtype[np.uint8]]

BUDGET = 192 << 20
"""The most bytes that a rank makes for all its communicators together. A communicator holds its memory until it is
freed, and a program may have hundreds of communicators."""
_NAME = "mpicoll-"
_MEANT = f"/memfd:{_NAME}", "/dev/shm/torch_"
"""How the names of files begin that may be opened: mpicoll's, and torch's. Some random digits follow."""


def share(comm: MPI.Intracomm, nbytes: int | None, bounded: bool = True) -> list[Block] | None:
    """A block of ``nbytes`` bytes of each rank, which all ranks map. Collective among ranks of one node.

    None, on all ranks, if a rank wants none (``nbytes`` is None there), if a rank cannot map a block, if a rank has
    used up its ``BUDGET`` for what is ``bounded``, or if a rank has MPICOLL_SHARED_MEMORY=0. What is not bounded is the
    program's, whose forked children may use it, too."""
    _spare.keep()
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


def new_file(nbytes: int) -> int | None:
    """A file in memory. None if the system refuses it, or has less memory than that."""
    try:
        file = os.memfd_create(_NAME + os.urandom(8).hex())
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
    other = _spare.opened(f"/proc/{pid}/fd/{file}")
    try:
        if os.fstat(other).st_size < nbytes:
            raise OSError(errno.EINVAL, "the file is shorter")
        return Mapping(other, nbytes, inherited)
    finally:
        os.close(other)
        _spare.keep()


class _Spare:
    """A file that this process holds open for nothing else than to close it where it may open no more files. A rank
    that could not open the memory of another one would end the job."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._is: tuple[int, int] | None = None

    def keep(self) -> None:
        """Hold one, if the system allows it."""
        if self._file is not None:
            return
        with suppress(OSError):
            self._file = os.memfd_create(f"{_NAME}spare")
            self._is = _identity(self._file)

    def opened(self, path: str) -> int:
        """A file, for reading and writing. Raises OSError."""
        try:
            return os.open(path, os.O_RDWR)
        except OSError as e:
            if e.errno not in (errno.EMFILE, errno.ENFILE) or not self._close():
                raise
        return os.open(path, os.O_RDWR)

    def _close(self) -> bool:
        file, self._file = self._file, None
        # A program may have closed all files, and opened others.
        if file is None or _identity(file) != self._is:
            return False
        os.close(file)
        return True


def _identity(file: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_spare = _Spare()


class Mapping:
    """A file that is mapped into memory as long as anything refers to this object. Python's mmap would also keep a file
    open, and a forked child would keep the memory. Only if the memory is ``inherited``, a child may use it."""

    def __init__(self, file: int, nbytes: int, inherited: bool = False) -> None:
        self.address, self.nbytes = map_file(file, nbytes), nbytes
        weakref.finalize(self, _unmap, os.getpid(), self.address, nbytes).atexit = False
        if not inherited:
            keep_from_children(self.address, nbytes)
        self.__array_interface__ = {"version": 3, "data": (self.address, False), "shape": (nbytes,), "typestr": "|u1"}


_own: weakref.WeakSet[Mapping] = weakref.WeakSet()
"""The mappings of the blocks that this rank has made that are bounded."""


def _unmap(process: int, address: int, nbytes: int) -> None:
    if os.getpid() == process:  # a forked child may have something else at this address
        unmap(address, nbytes)
