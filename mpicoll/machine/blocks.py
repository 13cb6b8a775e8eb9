"""Memory of this process that the other ranks of its node can open: blocks, which are used again and again.

A block is a file in memory that has no name in the file system. Another rank opens it through /proc, when it meets an
array that lies there. A block is never given back to the system: ranks that have opened it would go on to hold it.
"""

from __future__ import annotations

import mmap
import os
import weakref
from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpicoll.machine.shared_memory import Block, Mapping, mapped, new_file

__all__ = ["LEAST", "Place", "allocate", "exist", "opened", "place_of"]

LEAST = 16 << 10
"""Bytes of the shortest array that lies in a block. It does not pay for shorter ones."""
MOST = 256
"""The most blocks of a process. Each holds a file open, of which many systems allow a process 1,024."""


class Place(NamedTuple):
    """Where memory lies: in which file of which process, how long the block is, and how far in the memory begins."""

    process: int
    file: int
    mark: int
    nbytes: int
    offset: int


@dataclass(frozen=True)
class _Own:
    """A block of this process. Its file stays open as long as the process lives."""

    memory: Block
    file: int
    mark: int
    nbytes: int


_free: dict[int, list[_Own]] = {}
_starts: list[tuple[int, _Own]] = []
"""All blocks, by their addresses."""


class _Lease:
    """Memory of a block, which is free again when nothing refers to this object any more."""

    def __init__(self, block: _Own, nbytes: int) -> None:
        self.__array_interface__ = {**block.memory.__array_interface__, "shape": (nbytes,)}
        weakref.finalize(self, _free[block.nbytes].append, block).atexit = False


def allocate(nbytes: int) -> Block | None:
    """Uninitialised memory of so many bytes. None if it is short, or if the system or ``MOST`` allows no more."""
    if nbytes < LEAST:
        return None
    room = _rounded(nbytes)
    free = _free.setdefault(room, [])
    block = free.pop() if free else _new(room)
    return None if block is None else np.asarray(_Lease(block, nbytes))


def exist() -> bool:
    """Whether this process has made any block."""
    return bool(_starts)


def place_of(address: int, nbytes: int) -> Place | None:
    """Where the memory at this address lies. None if it is not in one block."""
    at = bisect_right(_starts, address, key=lambda start: start[0]) - 1
    if at < 0:
        return None
    start, block = _starts[at]
    offset = address - start
    if offset + nbytes > block.nbytes:
        return None
    return Place(os.getpid(), block.file, block.mark, block.nbytes, offset)


_opened: dict[tuple[int, int, int], Block | None] = {}


def opened(place: Place) -> Block | None:
    """The block of that place. None if it is another process's and cannot be opened."""
    key = place.process, place.file, place.mark
    if key not in _opened and place.process == os.getpid():
        return next(block.memory for _, block in _starts if block.file == place.file)
    if key not in _opened:
        mapping = mapped(*place[:2], _bytes_of(place.mark), place.nbytes)
        _opened[key] = None if mapping is None else np.asarray(mapping)
    return _opened[key]


def _new(nbytes: int) -> _Own | None:
    if len(_starts) >= MOST:
        return None
    mark = int.from_bytes(os.urandom(8), "little") >> 1
    file = new_file(nbytes, _bytes_of(mark))
    if file is None:
        return None
    try:
        memory = np.asarray(Mapping(file, nbytes, inherited=True))
    except OSError:
        os.close(file)
        return None
    block = _Own(memory, file, mark, nbytes)
    insort(_starts, (memory.ctypes.data, block), key=lambda start: start[0])
    return block


def _rounded(nbytes: int) -> int:
    """As long as a block must be. There are few different lengths, so that blocks are used again."""
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


def _bytes_of(mark: int) -> bytes:
    return mark.to_bytes(16, "little")
