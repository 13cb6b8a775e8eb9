"""The memory of the node's ranks that this process has opened, and what it has let others open.

As long as a process has memory of another one open, its owner cannot give it back. So a rank tells in its next call
which of its allocations are no more, and the others close them.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from mpicoll.devices.device import Device, Handle
from mpicoll.fabrics.routes.devices.failures import Tell


class _Allocation(NamedTuple):
    """Another process's memory, as a device of this process opens it."""

    device: str
    process: int
    handle: bytes


class Peers:
    """The ranks of a communicator, and whose memory they have opened."""

    def __init__(self, rank: int, size: int, device: Device, tell: Tell) -> None:
        self.rank, self.size, self.device, self.tell = rank, size, device, tell
        self._known: set[tuple[int, bytes]] = set()
        """The allocations of which each rank knows that all ranks have them open."""
        self._open: set[_Allocation] = set()
        self._lent: dict[bytes, int] = {}
        """The allocations of this rank that others may have open: an address in each."""
        self._end = weakref.finalize(self, _unused.append, (device, self._open))
        self._end.atexit = False

    def free(self) -> None:
        """Give up all that is open."""
        self._end()
        _close_unused()

    def lend(self, address: int) -> Handle | None:
        """A handle of this rank's memory. None if nobody else can open it."""
        handle = self.device.export(address)
        if handle is not None:
            self._lent[handle.allocation] = address
        return handle

    def ended(self) -> list[bytes]:
        """What was lent and is no more."""
        ended = [handle for handle, address in self._lent.items() if not self._is_there(handle, address)]
        for handle in ended:
            del self._lent[handle]
        return ended

    def _is_there(self, handle: bytes, address: int) -> bool:
        now = self.device.export(address)
        return now is not None and now.allocation == handle

    def close(self, process: int, ended: Iterable[bytes]) -> None:
        """Give up what another rank has told of."""
        for handle in ended:
            self._known.discard((process, handle))
            allocation = _Allocation(self.device.name, process, handle)
            if allocation in self._open:
                self._open.discard(allocation)
                _close(self.device, [allocation])

    def opened(self, handles: Sequence[Handle | None], own: int | None) -> list[int | None] | None:
        """The address of each rank's memory. None, on all ranks, if one cannot open another's."""
        addresses = [own if r == self.rank else h and self._address(h) for r, h in enumerate(handles)]
        used = {(h.process, h.allocation) for h in handles if h is not None}
        if not used <= self._known:
            possible = all(a is not None for a, h in zip(addresses, handles, strict=True) if h is not None)
            if not all(self.tell(possible)):
                return None
            self._known |= used
        return addresses

    def _address(self, handle: Handle) -> int | None:
        allocation = _Allocation(self.device.name, handle.process, handle.allocation)
        start = _opened(self.device, handle, allocation, first=allocation not in self._open)
        if start is None:
            return None
        self._open.add(allocation)
        return start + handle.offset


class _Opened:
    """An allocation that this process has open, and how many communicators use it."""

    def __init__(self, start: int) -> None:
        self.start, self.users = start, 0


_of_process: dict[_Allocation, _Opened] = {}
_lock = threading.Lock()
_unused: deque[tuple[Device, set[_Allocation]]] = deque()
"""What a communicator had open that is no more. The garbage collector may have come while the lock was held, so it is
closed later."""


def forget() -> None:
    """A forked child has nothing open."""
    _of_process.clear()
    _unused.clear()


def _opened(device: Device, handle: Handle, allocation: _Allocation, first: bool) -> int | None:
    """Where an allocation begins in this process, which opens it if it is not open."""
    _close_unused()
    with _lock:
        if allocation not in _of_process:
            start = device.open(handle)
            if start is None:
                return None
            _of_process[allocation] = _Opened(start)
        found = _of_process[allocation]
        found.users += first
        return found.start


def _close_unused() -> None:
    with suppress(IndexError):
        while True:
            _close(*_unused.popleft())


def _close(device: Device, allocations: Iterable[_Allocation]) -> None:
    """One communicator uses these no more."""
    for allocation in allocations:
        with _lock:
            found = _of_process.get(allocation)
            if found is None:
                continue
            found.users -= 1
            if not found.users:
                del _of_process[allocation]
                device.close(found.start)
