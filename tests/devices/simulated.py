"""A device without hardware. It makes visible what would go wrong on a GPU, on any machine.

Its memory can be touched by its streams alone: whoever reads or writes it directly ends the process. Its streams work
late, so that whoever does not wait reads old values. Its memory and its copies fail on demand. Peers open its memory as
ranks of a node do. Nothing here is fast: it is for tests and for the study of costs."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import DTYPES, Dtype, Reduction
from mpicoll.arrays.libraries import Described, owners
from mpicoll.devices.device import Device, Handle, Stream
from mpicoll.errors import DeviceFailure
from mpicoll.machine.shared_memory import Block
from tests.devices.arena import Arena, Reserved
from tests.devices.simulated_array import SimulatedArray
from tests.devices.simulated_queue import Costs, Place, SimulatedStream

_numbers = itertools.count()


class Simulated(Device):
    """A simulated device. ``seed`` is that of its delays. ``mpi`` says whether an MPI is pretended to take its
    memory."""

    def __init__(self, costs: Costs | None = None, capacity: int = 1 << 30, seed: int = 0, mpi: bool = True) -> None:
        self.name = f"simulated:{next(_numbers)}"
        self.costs, self._mpi = costs or Costs(), mpi
        self._arena = Arena(capacity)
        self._peers: dict[int, Reserved] = {}
        self._seed = itertools.count(seed * 1000)
        self._streams: weakref.WeakSet[SimulatedStream] = weakref.WeakSet()
        self._default = self.new_stream()
        self._here = threading.local()
        self._faults: dict[str, int] = {}
        self._unexportable: set[int] = set()
        self.counts: Counter[str] = Counter()
        """How often each thing was asked for: ``allocation``, ``pinned``, ``pin``, ``copy``, ``kernel``."""
        owners[self.name] = self

    # -- what programs do ---------------------------------------------------------------------------------------------

    def array(self, values: Any, dtype: str | None = None) -> SimulatedArray:
        """A new array with these values. ``dtype`` is the name of one, where it is not that of the values."""
        host = np.asarray(values)
        made = self.empty(host.shape, DTYPES[dtype or host.dtype.name])
        made.set(host)
        return made

    def empty(self, shape: tuple[int, ...], dtype: Dtype) -> SimulatedArray:
        """A new array without values. Raises MemoryError if there is no room."""
        storage = kernels.storage(dtype)
        memory = self.allocate(int(np.prod(shape, dtype=np.int64)) * storage.itemsize, self.current())
        return SimulatedArray(self, memory, dtype, _described(memory.address, shape, None, storage))

    def fail(self, what: str, number: int = 1) -> None:
        """Let the ``number``-th thing of this kind from now fail. 0 lets none fail any more. What can fail are each
        ``allocation``, ``pinned`` memory, ``pin``, ``export``, ``copy`` and ``kernel``."""
        self._faults[what] = number

    def fails(self, what: str) -> bool:
        """Whether this piece of work fails on demand."""
        self.counts[what] += 1
        left = self._faults.get(what, 0)
        self._faults[what] = max(0, left - 1)
        return left == 1

    @property
    def allocations(self) -> int:
        """The number of pieces of memory that are not given back."""
        return self._arena.allocations

    # -- what routes do -----------------------------------------------------------------------------------------------

    def owns(self, address: int) -> bool:
        return any(range_.owns(address) for range_ in self._ranges())

    def _ranges(self) -> list[Reserved]:
        return [self._arena, *list(self._peers.values())]

    def current(self) -> SimulatedStream:
        return self._here.__dict__.get("stream") or self._default

    def new_stream(self) -> SimulatedStream:
        made = SimulatedStream(self, next(self._seed))
        self._streams.add(made)
        return made

    @contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        before = self._here.__dict__.get("stream")
        self._here.stream = stream
        try:
            yield
        finally:
            self._here.stream = before

    def allocate(self, nbytes: int, stream: Stream) -> _Memory:
        assert isinstance(stream, SimulatedStream)
        if self.fails("allocation") or (address := self._arena.take(nbytes, self.counts["allocation"])) is None:
            raise MemoryError(f"{self.name} has no {nbytes} bytes left")
        return _Memory(address, partial(stream.after, partial(self._arena.give_back, address)))

    def pinned(self, nbytes: int) -> Block:
        if self.fails("pinned"):
            raise MemoryError(f"{self.name} cannot pin {nbytes} bytes")
        return np.empty(nbytes, np.uint8)

    def pin(self, memory: Block) -> Block:
        if self.fails("pin"):
            raise MemoryError(f"{self.name} cannot pin these {memory.nbytes} bytes")
        return memory

    def view(self, b: Buffer) -> Place:
        storage = kernels.storage(b.dtype)
        if b.device == "cpu":
            return Place(_described(b.address, b.shape, b.strides, storage, keep=b.array))
        distances = [(n - 1) * s for n, s in zip(b.shape, b.strides, strict=True)] if b.count else []
        low = b.address + sum(d for d in distances if d < 0)
        high = b.address + sum(d for d in distances if d > 0) + (storage.itemsize if b.count else 0)
        real = next(range_.real(b.address) for range_ in self._ranges() if range_.owns(b.address))
        return Place(_described(real, b.shape, b.strides, storage), low, high)

    def check(self, place: Place) -> None:
        """Raise DeviceFailure unless the place is memory that somebody has."""
        if self._arena.owns(place.low) and self._arena.number_at(place.low, place.high) is None:
            raise DeviceFailure(f"{self.name}: memory was used after it was given back")

    def reduces(self, reduction: Reduction) -> bool:
        return True

    def known_to_mpi(self) -> bool:
        return self._mpi

    @property
    def model(self) -> str:
        return "simulated"

    @property
    def identity(self) -> str:
        return f"{os.getpid()}:{id(self)}"

    def again(self) -> Callable[[], Simulated]:
        return Simulated

    def for_mpi(self, address: int, nbytes: int) -> int:
        if any(stream.touches(address, address + nbytes) for stream in list(self._streams)):
            raise DeviceFailure(f"{self.name}: MPI was given memory on which work is pending")
        return self._arena.real(address)

    def export(self, address: int) -> Handle | None:
        if self.fails("export"):
            return None
        return Handle(os.getpid(), os.fsencode(self._arena.path), address - self._arena.start)

    def open(self, handle: Handle) -> int | None:
        if handle.process == os.getpid() and handle.allocation == os.fsencode(self._arena.path):
            return self._arena.start
        peer = self._opened(handle)
        if peer is None:
            return None
        self._peers[peer.start] = peer
        return peer.start

    def close(self, start: int) -> None:
        self._peers.pop(start, None)

    def _opened(self, handle: Handle) -> Reserved | None:
        if self.fails("open"):
            return None
        try:
            file = os.open(handle.allocation, os.O_RDWR)
        except OSError:
            return None
        try:
            return Reserved(file, os.fstat(file).st_size)
        finally:
            os.close(file)


class _Memory:
    """Memory that is given back when this object is dropped, after the work of the stream that was current then."""

    def __init__(self, address: int, free: Any) -> None:
        self.address = address
        weakref.finalize(self, free).atexit = False


def _described(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any], keep: Any = None
) -> np.ndarray[Any, Any]:
    """An array at an address. Nothing is read. The array keeps ``keep``."""
    return np.asarray(Described(address, shape, dtype.str, strides, held=keep))
