"""Memory of this process that the other ranks of its node can open: blocks, and what others have put into a file.

A block is a file in memory that has no name in the file system. Another rank opens it through /proc, when it meets an
array that lies there. Blocks are used again and again, because ranks that have opened one go on to hold it. What is in
a free block is given back to the system where free blocks are many, or memory is short: the file stays, and gets memory
again when it is used again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import count
from threading import RLock
from typing import NamedTuple, Protocol

import numpy as np

from mpicoll.machine.pages import give_back
from mpicoll.machine.shared_memory import Block, Mapping, fill, kept_for_later, mapped, mark_of, new_file
from mpicoll.node.loaded import kernel

LEAST = 16 << 10
"""Bytes of the shortest array that lies in such memory. It does not pay for shorter ones."""
MOST = 256
"""The most blocks of a process, and the most adopted files. Each holds a file open, of which many systems allow a
process 1,024 (ulimit -n)."""
SHARE = 0.75
"""The part of the files that a process may open which arrays may use. The rest is the program's."""
FACTOR = 2
"""All blocks keep at most so many times the bytes that were in use at once: a program that makes and drops the same
arrays again and again finds their memory."""
LEAST_FREE = 64 << 20
"""Bytes that free blocks may keep in any case."""


class Place(NamedTuple):
    """Where memory lies: in which file of which process, how long the file is, whether the file is there as long as the
    process, and how far in the memory begins."""

    process: int
    file: int
    mark: int
    nbytes: int
    lasts: int
    offset: int


class Own:
    """Memory of this process in a file that others can open: a block."""

    lasts = True
    """Whether it is there as long as the process."""

    def __init__(self, start: int, nbytes: int, file: int, held: object = None) -> None:
        """``held`` is what holds the memory, if nothing else does. Raises OSError if there is no such file."""
        self.start, self.nbytes, self._file, self._held = start, nbytes, file, held
        self._mark = mark_of(os.getpid(), file)

    def place_of(self, address: int) -> Place:
        """Where what begins at this address lies."""
        return Place(os.getpid(), self._file, self._mark, self.nbytes, self.lasts, address - self.start)

    def is_there(self) -> bool:
        """Whether the memory still begins where it did."""
        return True

    def empty(self) -> bool:
        """Give its memory back to the system, until it is filled. False if the system does not take it."""
        return give_back(self._file, self.nbytes)

    def fill(self) -> bool:
        """Get memory for it again. False if the system has none."""
        return fill(self._file, self.nbytes)

    def bytes(self, nbytes: int) -> Block:
        """The first bytes of the memory. They do not hold it."""
        return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(self.start)), np.uint8)


class Holder(Protocol):
    """What holds adopted memory, as torch's storages do: as long as there is a reference to it, and no other memory."""

    def data_ptr(self) -> int:
        """Where its memory begins now."""
        ...


class Adopted(Own):
    """Memory that something else has put into a file, and may take away."""

    lasts = False

    def __init__(self, holder: Holder, nbytes: int, file: int) -> None:
        super().__init__(holder.data_ptr(), nbytes, file)
        self.holder = weakref.ref(holder)
        """None if it is gone."""

    def is_there(self) -> bool:
        holder = self.holder()
        return holder is not None and holder.data_ptr() == self.start


versions = count(1)
"""Numbers that this process gives to places of its memory, and each to one alone."""
known: Sequence[Own] = ()
"""All such memory of this process, by its addresses. It is replaced and never changed. So it is another one when there
is more memory, and whoever looks at it may be interrupted."""
_changing = RLock()
"""Held while ``known`` or the pool changes. A signal's handler, or a finalizer, may come in the midst of that on the
same thread, which has the lock then: the pool is ``busy``."""


class _Lease:
    """Memory of a block, which is free again when nothing refers to this object any more."""

    def __init__(self, block: Own, nbytes: int) -> None:
        self.__array_interface__ = block.bytes(nbytes).__array_interface__
        weakref.finalize(self, _pool.take_back, block).atexit = False


class _Pool:
    """The free blocks."""

    def __init__(self) -> None:
        self._returned: deque[Own] = deque()
        """Blocks that were handed back. A finalizer may run at any moment, and can only try to get a lock."""
        self.busy = False
        """Whether somebody changes the pool, or ``known``, at this moment."""
        self._free: list[Own] = []
        """In the order in which they were handed back."""
        self._emptied: set[Own] = set()
        """Those whose memory the system has back."""
        self._used = self._most_used = 0
        """Bytes in use, now and at most so far."""

    def take_back(self, block: Own) -> None:
        self._returned.append(block)
        if self is not _pool:
            return  # this is a forked child, and the block is its parent's
        if _changing.acquire(blocking=False):
            try:
                if not self.busy:
                    self._tidy()
            finally:
                _changing.release()

    def give(self, nbytes: int) -> Own | None:
        """A free block of so many bytes that has memory, the latest one; None if there is none."""
        self._tidy()
        fitting = [block for block in reversed(self._free) if block.nbytes == nbytes]
        for block in sorted(fitting, key=self._emptied.__contains__):
            if block not in self._emptied or block.fill():
                self._emptied.discard(block)
                self._free.remove(block)
                return block
        return None

    def uses(self, block: Own) -> None:
        """Take note of a block that is in use from now on."""
        self._used += block.nbytes
        self._most_used = max(self._most_used, self._used)

    def _tidy(self) -> None:
        """Take in what was handed back, and give memory back to the system where free blocks have too much: those that
        have been free for the longest time come first, and the latest one stays."""
        while self._returned:
            self._free.append(block := self._returned.popleft())
            self._used -= block.nbytes
        filled = [block for block in self._free if block not in self._emptied]
        too_much = sum(block.nbytes for block in filled) - max(LEAST_FREE, FACTOR * self._most_used - self._used)
        for block in filled[:-1]:
            if too_much <= 0:
                break
            if block.empty():
                self._emptied.add(block)
                too_much -= block.nbytes

    def empty(self) -> bool:
        """Give the memory of all free blocks back to the system. False if they have none."""
        given = [block for block in self._free if block not in self._emptied and block.empty()]
        self._emptied.update(given)
        return bool(given)


_pool = _Pool()


def _give_back() -> bool:
    with _changing:
        if not _pool.busy:
            _pool._tidy()
        return _pool.empty()


kept_for_later.append(_give_back)


def allocate(nbytes: int, spare: int = 0) -> Block | None:
    """Uninitialised memory of so many bytes. None if it is short, or if the system or ``MOST`` allows no more, or
    if this is a signal's handler that has come in the midst of it: ``refusal`` says which. A new block leaves ``spare``
    of ``MOST``."""
    if nbytes < LEAST:
        return None
    room = _rounded(nbytes)
    with _changing:
        if _pool.busy:
            return None
        _pool.busy = True
        try:
            block = _pool.give(room) or _new(room, spare)
            if block is None:
                return None
            _pool.uses(block)
        finally:
            _pool.busy = False
    return np.asarray(_Lease(block, nbytes))


def refusal(nbytes: int) -> str:
    """Why there is no more memory of so many bytes. It is the same for all of about that length."""
    if _pool.busy:
        return "a signal's handler asks for one while another is made"
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
        file = os.open("/", os.O_PATH)
    except OSError:
        return False
    os.close(file)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most == resource.RLIM_INFINITY or file < SHARE * most


def adopt(holder: Holder, nbytes: int, file: int) -> None:
    """Take note that all memory of ``holder`` lies at the beginning of this open file of this process. If other
    processes could not recognise the file, it stays memory that only this one knows. Raises OSError if it is none."""
    adopted = Adopted(holder, nbytes, file)
    if adopted.place_of(adopted.start).mark >= 0:
        with _changing:
            if not _pool.busy:
                _add(adopted)


def exist() -> bool:
    """Whether this process has such memory."""
    return bool(known)


def own_at(address: int, nbytes: int) -> Own | None:
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
    """The memory of that place and what follows in the file. Raises OSError if it is another process's and cannot be
    opened."""
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


def _new(nbytes: int, spare: int) -> Own | None:
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
    block = Own(mapping.address, nbytes, file, mapping)
    _add(block)
    return block


def _add(own: Own) -> None:
    global known
    known = sorted([own, *(each for each in known if each.is_there())], key=_start)
    if kernel is not None:
        kernel.changed()


def _start(own: Own) -> int:
    return own.start


def forget() -> None:
    """In a forked child: its parent may use the free blocks, too, and write to them. Another thread of the parent may
    have had the lock."""
    global known, _changing, _pool
    known, _changing, _pool = (), RLock(), _Pool()


def _rounded(nbytes: int) -> int:
    """As long as a block must be. There are few different lengths, so that blocks are used again."""
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step
