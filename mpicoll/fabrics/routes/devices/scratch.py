"""Memory of a device that the calls of a communicator use one at a time."""

from __future__ import annotations

from mpicoll.algorithms.collectives import input_of
from mpicoll.devices.device import Device, Event, Memory, Queue
from mpicoll.errors import DeviceError

ALIGNED = 256


class Scratch:
    """Memory that grows, and never shrinks. Plans that were bound before use what they were bound to.

    Calls of several queues use the same memory. Each call comes after the one before, and says when it is done. The
    memory is given back in the turn of a queue of its own, which waits for them all."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._size = 0
        self._memory: list[Memory] = []  # each piece has at least twice the size of the one before
        self._done: Event | None = None
        self._queue: Queue | None = None

    def addresses(self, operation: str, *lengths: int) -> list[int]:
        """Where pieces of memory of so many bytes begin. The next call gets the same memory. Raises DeviceError if
        there is none."""
        rooms = [-(-n // ALIGNED) * ALIGNED for n in lengths]
        need = max(sum(rooms), 1)
        if self._size < need:
            if self._queue is None:
                self._queue = self._device.queue()
            size = max(need, 2 * self._size)
            try:
                self._memory.append(self._device.allocate(size, self._queue))
                self._size = size
            except MemoryError as e:
                expected = f"{size} bytes of {self._device.name} for the call to work in"
                raise DeviceError(operation, input_of(operation), expected, str(e)) from e
        start = self._memory[-1].address
        return [start + sum(rooms[:i]) for i in range(len(rooms))]

    def begin(self, queue: Queue) -> None:
        """Let the queue wait until the call before is done."""
        if self._done is not None:
            queue.wait_for(self._done)

    def end(self, queue: Queue) -> None:
        """The call is done when the queue comes here."""
        self._done = queue.record()
        if self._queue is not None:
            self._queue.wait_for(self._done)
