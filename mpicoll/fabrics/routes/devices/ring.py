"""Host memory through which the data of a device goes. A communicator has it for as long as it lives."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from mpicoll.algorithms.collectives import input_of
from mpicoll.arrays.buffers import Buffer, host_buffer
from mpicoll.arrays.dtypes import Dtype
from mpicoll.devices.device import Device, Event
from mpicoll.errors import DeviceError, DeviceFailure
from mpicoll.machine.blocks import LEAST, MOST, allocate
from mpicoll.machine.shared_memory import Block

SLOTS = 3
"""One slot is filled by the device, MPI works on another one, and the device empties the third."""

SHORTEST, FEW = 256 << 10, 16 << 20
"""Bytes of a slot in shared memory: the least, and up to where there are few different lengths. A process keeps the
memory of slots that are gone for others of the same length."""


@dataclass(eq=False, slots=True)
class Work:
    """What the device may not have done yet in a slot: to put in what comes next, and to take out what was put in
    last."""

    filled: Event | None = None
    emptied: Event | None = None
    process: int = field(default_factory=os.getpid)

    def wait(self) -> None:
        if os.getpid() != self.process:
            return  # this is a forked child, and the device works for its parent
        for event in (self.filled, self.emptied):
            if event is not None:
                with suppress(DeviceFailure):  # the device does nothing more then
                    event.wait()


class Slot:
    """Room for one piece."""

    def __init__(self, memory: Block) -> None:
        self.memory, self.work = memory, Work()
        # When the slot is gone, its memory may become another array's: not before the device is done with it.
        weakref.finalize(self, self.work.wait).atexit = False

    def buffer(self, start: int, shape: tuple[int, ...], dtype: Dtype) -> Buffer:
        """Elements in the slot, from byte ``start`` on."""
        return host_buffer(self.memory[start:], shape, dtype)


class Ring:
    """The slots of one communicator for one device, and the queues that fill and empty them.

    Slots grow, and never shrink. A plan that was bound before keeps the slots that it was bound to. If ranks share
    arrays, slots lie in memory that they share: then the host's route need not copy."""

    def __init__(self, device: Device, shares_arrays: bool) -> None:
        self.device, self._shares_arrays = device, shares_arrays
        self.filling, self.emptying = device.queue(), device.queue()
        self._slots: list[Slot] = []

    def slots(self, number: int, nbytes: int, operation: str) -> list[Slot]:
        """Up to SLOTS slots of at least so many bytes. Raises DeviceError if there is no memory."""
        number = min(number, SLOTS)
        for i in range(number):
            old = self._slots[i].memory.size if i < len(self._slots) else 0
            if old < nbytes or i >= len(self._slots):
                room = max(nbytes, min(1 << (nbytes - 1).bit_length(), FEW), min(2 * old, 2 * nbytes))
                if nbytes >= LEAST:
                    room = max(room, SHORTEST)
                self._slots[i : i + 1] = [Slot(self._memory(room, operation))]
        return self._slots[:number]

    def _memory(self, nbytes: int, operation: str) -> Block:
        """Pinned memory, or memory that the system may page out if there is none. Copies are slower then."""
        shared = allocate(nbytes, spare=MOST // 2) if self._shares_arrays else None  # the rest is the program's
        if shared is not None:
            with suppress(MemoryError):  # the next line asks for memory of another sort
                return self.device.pin(shared)
        try:
            return self.device.pinned(nbytes)
        except MemoryError:
            pass  # the next line asks for memory of the other sort
        try:
            return np.empty(nbytes, np.uint8)
        except MemoryError as e:
            expected = f"{nbytes} bytes of host memory, to go through from {self.device.name}"
            raise DeviceError(operation, input_of(operation), expected, "a machine that has none left") from e
