"""Files in memory, as this process maps them, and the huge pages that such a file may have.

A processor remembers where some thousand pages are. Of 4 KiB each, that is less than a long array: then it must look up
one page after another. A huge page has 2 MiB. Linux gives none to files in memory by itself unless its settings say so,
but makes them where a program asks it to put small pages together (MADV_COLLAPSE, from Linux 6.1 on).
"""

from __future__ import annotations

import ctypes
import mmap
import os

from mpicoll.machine.system import huge_pages

HUGE = 2 << 20
"""Bytes of a huge page."""
LEAST = 2 * HUGE
"""Bytes of the shortest file that gets huge pages. From this length on, NumPy asks for them, too."""
# Linux's numbers, which Python does not name.
_MADV_POPULATE_WRITE, _MADV_COLLAPSE = 23, 25
_MAP_FIXED = 0x10
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def map_file(file: int, nbytes: int) -> int:
    """Map a file into memory, and return the address. That of a long file is a multiple of ``HUGE``: elsewhere, the
    processor would see a huge page as small ones. Raises OSError."""
    if nbytes < LEAST:
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


def keep_from_children(address: int, nbytes: int) -> None:
    """Let forked children have nothing at this address."""
    _c.madvise(address, nbytes, mmap.MADV_DONTFORK)


def use_huge_pages(file: int, nbytes: int) -> None:
    """Fill the file with huge pages as far as the system gives them, or put its small pages together. The rest of its
    memory is left to the caller. Raises OSError if the system has no memory."""
    setting = huge_pages("shmem_enabled")  # it says "never" on most systems
    if nbytes < LEAST or setting in (None, "deny"):
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
    """Give a file's memory back to the system. It keeps its length, and whoever has mapped it reads zeros. False if the
    system does not take it."""
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
_c.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
_c.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_c.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
