"""Memory that is addressed in one place and lies in another.

An arena reserves a range of addresses that nobody can read or write. To touch one ends the process. The bytes lie in a
file, in memory if the system has that, which is mapped elsewhere, and which other processes of the node can map too."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import threading
import weakref
from typing import NamedTuple

from mpicoll.machine import linux

PAGE = 4096


class Reserved:
    """A range of addresses that nobody can touch, and the mapped file that holds its bytes."""

    def __init__(self, file: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self.start = _map(nbytes, _NOTHING, _ANONYMOUS, -1)
        self._bytes = _map(nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file)
        for address in (self.start, self._bytes):
            weakref.finalize(self, _c.munmap, address, nbytes).atexit = False

    def owns(self, address: int) -> bool:
        return self.start <= address < self.start + self.nbytes

    def real(self, address: int) -> int:
        """Where the bytes of an address lie."""
        return address - self.start + self._bytes


class _Taken(NamedTuple):
    start: int
    stop: int
    number: int


class Arena(Reserved):
    """A reserved range from which memory is allocated, first fit, a page apart."""

    def __init__(self, nbytes: int) -> None:
        file, self.path = linux.new_file("device")
        weakref.finalize(self, _remove, file, self.path).atexit = False
        os.ftruncate(file, nbytes)
        super().__init__(file, nbytes)
        self._file = file
        self._taken: list[_Taken] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int, number: int) -> int | None:
        """The address of new memory, which is known by its ``number``. None if there is no room."""
        room = -(-max(nbytes, 1) // PAGE) * PAGE + PAGE
        with self._lock:
            start = self.start
            for i, taken in enumerate([*self._taken, _Taken(self.start + self.nbytes, 0, 0)]):
                if taken.start - start >= room:
                    self._taken.insert(i, _Taken(start, start + nbytes, number))
                    return start
                start = -(-max(taken.stop, taken.start + 1) // PAGE) * PAGE + PAGE
        return None

    def give_back(self, address: int) -> None:
        """Free the memory at this address. Its bytes are lost."""
        with self._lock:
            i = bisect.bisect_left(self._taken, (address,))
            taken = self._taken[i]
            length = -(-max(taken.stop - taken.start, 1) // PAGE) * PAGE
            if hasattr(_c, "fallocate"):
                _c.fallocate(self._file, _PUNCH_HOLE | _KEEP_SIZE, taken.start - self.start, length)
            del self._taken[i]

    def number_at(self, low: int, high: int) -> int | None:
        """The number of the memory that holds these addresses; None if they are not all in one piece of memory."""
        with self._lock:
            i = bisect.bisect_right(self._taken, low, key=lambda taken: taken.start) - 1
            if i < 0 or high > self._taken[i].stop:
                return None
            return self._taken[i].number

    @property
    def allocations(self) -> int:
        """The number of pieces of memory that are not given back."""
        return len(self._taken)


def _remove(file: int, path: str) -> None:
    os.close(file)
    linux.forget(path)


def _map(nbytes: int, protection: int, flags: int, file: int) -> int:
    address: int = _c.mmap(None, nbytes, protection, flags, file, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return address


_NOTHING = 0
"""PROT_NONE: neither reading nor writing."""
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_c = ctypes.CDLL(None, use_errno=True)
_c.mmap.restype = ctypes.c_void_p
_c.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_c.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
if hasattr(_c, "fallocate"):  # of Linux
    _c.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
