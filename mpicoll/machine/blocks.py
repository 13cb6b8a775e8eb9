"""Memory of this process that the other ranks of its node can open: blocks, and what others have put into a file.

A block is a file in memory. Another rank opens it when it meets an array that lies there, and goes on to hold it: so
blocks are used again and again. The memory of a free block is given back to the system where free blocks are many, or
memory is short."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from mpicoll.machine.shared_memory import (
    Block,
    Lease,
    Mapping,
    fill,
    give_back,
    kept_for_later,
    mapped,
    mark_of,
    new_file,
)
from mpicoll.node.loaded import kernel

LEAST = 16 << 10  # bytes of the shortest array that lies in such memory. It does not pay for shorter ones.
MOST = 256
"""The most blocks of a process, and the most adopted files. Each holds a file open, of which many systems allow a
process 1,024 (ulimit -n)."""
SHARE = 0.75  # the part of the files that a process may open which arrays may use. The rest is the program's.
FACTOR = 2
"""All blocks keep at most so many times the bytes that were in use at once: a program that makes and drops the same
arrays again and again finds their memory."""
LEAST_FREE = 64 << 20  # bytes that free blocks may keep in any case


class Place(NamedTuple):
    """Where memory lies: in which file of which process, how long the file is, whether the file is there as long as the
    process, and how far in the memory begins."""

    process: int
    file: int
    mark: int
    nbytes: int
    lasts: int
    offset: int


class ShmSegment:
    """Memory of this process in a file that others can open: a block."""

    lasts = True  # whether it is there as long as the process

    def __init__(self, start: int, nbytes: int, file: int, held: object = None) -> None:
        """``held`` is what holds the memory, if nothing else does. Raises OSError if there is no such file."""
        self.start, self.nbytes, self._file, self._held = start, nbytes, file, held
        self._mark = mark_of(os.getpid(), file)
        found = os.fstat(file)
        self.home = file, found.st_dev, found.st_ino, start, nbytes
        """The file's number, device and inode, and the memory's address and bytes: how the kernel finds it."""
        self.is_empty = False  # whether the system has its memory back

    def place_of(self, address: int) -> Place:
        """Where what begins at this address lies."""
        return Place(os.getpid(), self._file, self._mark, self.nbytes, self.lasts, address - self.start)

    def is_there(self) -> bool:
        """Whether the memory still begins where it did."""
        return True

    def empty(self) -> bool:
        """Give its memory back to the system, until it is filled. False if the system does not take it."""
        self.is_empty = give_back(self._file, self.nbytes)
        return self.is_empty

    def fill(self) -> bool:
        """Get memory for it again. False if the system has none."""
        self.is_empty = self.is_empty and not fill(self._file, self.nbytes)
        return not self.is_empty

    def bytes(self, nbytes: int) -> Block:
        """The first bytes of the memory. They do not hold it."""
        return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(self.start)), np.uint8)


class ForeignSegment(ShmSegment):
    """Memory that something else has put into a file, and may take away: its ``holder``, whose ``data_ptr()`` says
    where it begins now, as that of torch's storages does."""

    lasts = False

    def __init__(self, holder: Any, nbytes: int, file: int) -> None:
        super().__init__(holder.data_ptr(), nbytes, file)
        self.holder = weakref.ref(holder)  # None if it is gone

    def is_there(self) -> bool:
        holder = self.holder()
        return holder is not None and holder.data_ptr() == self.start


versions = count(1)  # numbers that this process gives to places of its memory, and each to one alone
known: Sequence[ShmSegment] = ()
"""All such memory of this process, by its addresses. It is replaced and never changed. So it is another one when there
is more memory, and whoever looks at it may be interrupted.

A signal's handler, a finalizer or another thread may come in the midst of any change here. So nothing holds a lock:
each change of a list is a single call of its methods, which nothing interrupts."""
_all: list[ShmSegment] = []  # the same in no order
_changes = count(1)
_last_change = 0


class _Pool:
    """The blocks of this process."""

    def __init__(self) -> None:
        self.free: list[ShmSegment] = []  # in the order in which they were handed back
        self._made = self._most_used = 0  # bytes of all blocks, and bytes that were in use at most so far

    def take(self, nbytes: int, spare: int) -> ShmSegment | None:
        """A free block of so many bytes that has memory, the latest one, or else a new one. None if there is none."""
        fitting = [block for block in reversed(self.free) if block.nbytes == nbytes]
        for block in sorted(fitting, key=lambda block: block.is_empty):
            if self._claim(block):
                if block.fill():
                    break
                self.free.append(block)
        else:
            new = _new(nbytes, spare)
            if new is None:
                return None
            self._made += new.nbytes
            block = new
        self._tidy()
        return block

    def _claim(self, block: ShmSegment) -> bool:
        """Take a block out of the free ones. False if somebody else has done that."""
        try:
            self.free.remove(block)
        except ValueError:
            return False
        return True

    def _tidy(self) -> None:
        """Give memory of free blocks back to the system where they have too much, but not that of the latest one."""
        free = [*self.free]
        used = self._made - sum(block.nbytes for block in free)
        self._most_used = max(self._most_used, used)
        filled = [block for block in free if not block.is_empty]
        too_much = sum(block.nbytes for block in filled) - max(LEAST_FREE, FACTOR * self._most_used - used)
        for block in filled[:-1]:
            if too_much > 0 and self._empty(block):
                too_much -= block.nbytes

    def _empty(self, block: ShmSegment) -> bool:
        """Give a free block's memory back. False if it is not free any more, or if the system does not take it."""
        claimed = self._claim(block)
        if claimed:
            block.empty()
            self.free.insert(0, block)
        return claimed and block.is_empty

    def empty(self) -> bool:
        """Give the memory of all free blocks back to the system. False if they have none."""
        emptied = [self._empty(block) for block in [*self.free] if not block.is_empty]
        return any(emptied)


_pool = _Pool()
kept_for_later.append(lambda: _pool.empty())


def allocate(nbytes: int, spare: int = 0) -> Block | None:
    """Uninitialised memory of so many bytes. None if it is short, or if the system or ``MOST`` allows no more:
    ``refusal`` says which. A new block leaves ``spare`` of ``MOST``."""
    block = _pool.take(_rounded(nbytes), spare) if nbytes >= LEAST else None
    return None if block is None else np.asarray(Lease(block.bytes(nbytes), _pool.free.append, block))


def refusal(nbytes: int) -> str:
    """Why there is no more memory of so many bytes. It is the same for all of about that length."""
    if sum(own.lasts for own in known) >= MOST:
        return f"this process has {MOST} blocks of memory that ranks can share, which is the most"
    if not _may_keep_a_file():
        return f"{SHARE:.0%} of the files that this process may have are open (ulimit -n)"
    least = 1 << (nbytes.bit_length() - 1)
    return f"the system gives no memory that ranks can share for one of {least >> 10:,} to {least >> 9:,} KiB"


def may_adopt() -> bool:
    """Whether there is less than ``MOST`` adopted memory, and the program keeps enough files."""
    return sum(not own.lasts and own.is_there() for own in known) < MOST and _may_keep_a_file()


def _may_keep_a_file() -> bool:
    """Whether no more than the ``SHARE`` of files are open. A new file has the lowest number that is free."""
    try:
        file = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return False
    os.close(file)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most == resource.RLIM_INFINITY or file < SHARE * most


def adopt(holder: Any, nbytes: int, file: int) -> None:
    """Take note that all memory of ``holder`` lies at the beginning of this open file of this process. If other
    processes could not recognise the file, it stays memory that only this one knows. Raises OSError if it is none."""
    adopted = ForeignSegment(holder, nbytes, file)
    if adopted.place_of(adopted.start).mark >= 0:
        _add(adopted)


def exist() -> bool:
    """Whether this process has such memory."""
    return bool(known)


def own_at(address: int, nbytes: int) -> ShmSegment | None:
    """What has the memory at this address. None if not one has all of it."""
    starts = known
    at = bisect_right(starts, address, key=_start) - 1
    if at < 0:
        return None
    own = starts[at]
    return own if address + nbytes <= own.start + own.nbytes and own.is_there() else None


_lasting: dict[Place, Mapping] = {}
_others: weakref.WeakValueDictionary[Place, Mapping] = weakref.WeakValueDictionary()
"""Memory of other processes that this one has opened. If it does not last, it is here as long as it is used."""


def opened(place: Place) -> Block:
    """The memory from that place to the file's end. Raises OSError if it is another process's and cannot be opened."""
    whole = place._replace(offset=0)
    if place.process == os.getpid():
        [own] = [own for own in known if own.is_there() and own.place_of(own.start) == whole]
        return own.bytes(own.nbytes)[place.offset :]
    mapping = _others.get(whole)
    if mapping is None:
        mapping = mapped(place.process, place.file, place.mark, place.nbytes)
        _others[whole] = mapping
        if place.lasts:
            _lasting[whole] = mapping
    return np.asarray(mapping)[place.offset :]


def _new(nbytes: int, spare: int) -> ShmSegment | None:
    if sum(own.lasts for own in known) >= MOST - spare or not _may_keep_a_file():
        return None
    file = new_file(nbytes)
    if file is None:
        return None
    try:
        mapping = Mapping(file, nbytes, inherited=True)
    except OSError:
        os.close(file)
        return None
    block = ShmSegment(mapping.address, nbytes, file, mapping)
    _add(block)
    return block


def _add(own: ShmSegment) -> None:
    global known, _last_change
    _all.append(own)
    for gone in [each for each in _all if not each.is_there()]:
        with suppress(ValueError):  # somebody else has removed it
            _all.remove(gone)
    while True:
        change = _last_change = next(_changes)
        known = sorted(_all, key=_start)
        if change == _last_change:  # else somebody has come in between, whose list has been replaced by an older one
            break
    if kernel is not None:
        kernel.changed()


def _start(own: ShmSegment) -> int:
    return own.start


def forget() -> None:
    """In a forked child: its parent may use the free blocks, too, and write to them."""
    global known, _all, _pool
    known, _all, _pool = (), [], _Pool()


def _rounded(nbytes: int) -> int:
    """As long as a block must be. There are few different lengths, so that blocks are used again."""
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step
