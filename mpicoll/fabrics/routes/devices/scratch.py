"""Memory of a device that the calls of a communicator use one at a time: to work in, or for arrays without gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mpicoll.algorithms.collectives import input_of
from mpicoll.arrays.buffers import Buffer, packed
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.devices.device import Device, Event, Memory, Stream
from mpicoll.errors import DeviceError

ALIGNED = 256


class Scratch:
    """Memory that grows, and never shrinks. Plans that were bound before use what they were bound to. Calls of several
    streams use the same memory. Each call comes after the one before, and says when it is done. The memory is given
    back in the turn of a stream of its own, which waits for them all."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._size = 0
        self._memory: list[Memory] = []  # each piece has at least twice the size of the one before
        self._done: Event | None = None
        self._stream: Stream | None = None

    def addresses(self, operation: str, *lengths: int) -> list[int]:
        """Where pieces of so many bytes begin. The next call gets them, too. Raises DeviceError if there are none."""
        rooms = [-(-n // ALIGNED) * ALIGNED for n in lengths]
        need = max(sum(rooms), 1)
        if self._size < need:
            if self._stream is None:
                self._stream = self._device.new_stream()
            size = max(need, 2 * self._size)
            try:
                self._memory.append(self._device.allocate(size, self._stream))
                self._size = size
            except MemoryError as e:
                expected = f"{size} bytes of {self._device.name} for the call to work in"
                raise DeviceError(operation, input_of(operation), expected, str(e)) from e
        start = self._memory[-1].address
        return [start + sum(rooms[:i]) for i in range(len(rooms))]

    def begin(self, stream: Stream) -> None:
        if self._done is not None:
            stream.wait_for(self._done)

    def end(self, stream: Stream) -> None:
        self._done = stream.record()
        if self._stream is not None:
            self._stream.wait_for(self._done)


def without_gaps(device: Device, call: Call, scratch: Scratch, bind: Callable[[Call], Plan]) -> Plan:
    """The plan of a call on arrays with gaps, or in another order: the caller's stream copies their elements to memory
    without gaps, for which ``bind`` binds the call, and back. Raises DeviceError if the device has no memory."""
    buffers = call.send, call.recv
    lengths = [0 if b is None or b.plain else b.nbytes for b in buffers]
    addresses = scratch.addresses(call.operation, *lengths)
    copies = [_packed(b, address) for b, address in zip(buffers, addresses, strict=True)]
    plan = bind(replace(call, send=copies[0], recv=copies[1]))
    gaps = [(b, p) for b, p in zip(buffers, copies, strict=True) if b is not None and p is not None and not b.plain]
    views = [(device.view(b), device.view(p)) for b, p in gaps]
    writes = call.recv is not None and not call.recv.plain

    def run() -> None:
        stream = device.current()
        scratch.begin(stream)
        for given, copy in views:
            stream.copy(copy, given)
        plan()
        if writes:
            stream.copy(*views[-1])
        scratch.end(stream)

    return run


def _packed(b: Buffer | None, address: int) -> Buffer | None:
    """The buffer if it has no gaps, or else memory at ``address`` for its elements."""
    if b is None or b.plain:
        return None if b is None else b.part(0, b.count)
    return replace(b, array=None, address=address, strides=packed(b.shape, b.dtype.itemsize), plain=True)
