"""Memory of a device that the calls of a communicator use one at a time."""

from __future__ import annotations

from mpicoll.devices.device import Device, Event, Memory, Queue
from mpicoll.errors import DeviceError

__all__ = ["Scratch"]

ALIGNED = 256


class Scratch:
    """Memory that grows, and never shrinks. A plan that was bound before keeps what it was bound to.

    Calls of several queues use the same memory. Each call comes after the one before, and says when it is done."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._size = 0
        self.memory: Memory | None = None
        self._done: Event | None = None

    def addresses(self, operation: str, *lengths: int) -> list[int]:
        """Where pieces of memory of so many bytes begin. The next call gets the same memory. Raises DeviceError if
        there is none."""
        rooms = [-(-n // ALIGNED) * ALIGNED for n in lengths]
        need = max(sum(rooms), 1)
        if self.memory is None or self._size < need:
            size = max(need, 2 * self._size)
            try:
                self.memory, self._size = self._device.allocate(size), size
            except MemoryError as e:
                expected = f"{size} bytes of {self._device.name} for the call to work in"
                raise DeviceError(operation, "x", expected, str(e)) from e
        start = self.memory.address
        return [start + sum(rooms[:i]) for i in range(len(rooms))]

    def begin(self, queue: Queue) -> None:
        """Let the queue wait until the call before is done."""
        if self._done is not None:
            queue.wait_for(self._done)

    def end(self, queue: Queue) -> None:
        """The call is done when the queue comes here."""
        self._done = queue.record()
