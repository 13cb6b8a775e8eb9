"""Calls on device memory, through the host: copy out, let the host's route work, copy in.

A long call is cut into pieces. While the host's route works on one piece, the device copies the next one out and the
last one in. All ranks cut alike: a vector that is combined element by element into runs of elements, and a vector of
blocks into the same part of each block. A short call needs no streams but the caller's, and the host waits once."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from mpicoll.algorithms.collectives import input_of
from mpicoll.arrays.buffers import Buffer, host_buffer
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.devices.device import Device, Event, Stream, Tell, View, failure_before, raise_any
from mpicoll.errors import DeviceError, DeviceFailure
from mpicoll.fabrics.routes.node import input_and_output
from mpicoll.machine.blocks import LEAST, MOST, allocate
from mpicoll.machine.shared_memory import Block

PIECE = 4 << 20
"""Bytes of the vector in a piece. Two ranks on an H200 took 17.8 ms for an all-reduce of 64 MiB in pieces of 1 MiB,
13.4 ms in pieces of 2 MiB, and 9.3 ms in pieces of 4 MiB."""
SLOTS = 3  # one slot is filled by the device, MPI works on another one, and the device empties the third
SHORTEST, FEW = 256 << 10, 16 << 20
"""Bytes of a slot in shared memory: the least, and up to where there are few different lengths. A process keeps the
memory of slots that are gone for others of the same length."""


@dataclass(eq=False, slots=True)
class _Work:
    """What the device may not have done yet: to fill a slot with what comes next, and to empty it."""

    filled: Event | None = None
    emptied: Event | None = None
    process: int = field(default_factory=os.getpid)

    def wait(self) -> None:
        for event in (self.filled, self.emptied):
            if event is not None and os.getpid() == self.process:  # in a forked child, it works for the parent
                failure_before(event)  # after which the device does nothing more


class _Slot:
    def __init__(self, memory: Block) -> None:
        self.memory, self.work = memory, _Work()
        # When the slot is gone, its memory may become another array's: not before the device is done with it.
        weakref.finalize(self, self.work.wait).atexit = False


class Ring:
    """The slots of one communicator for one device, and the streams that fill and empty them. Slots grow, and never
    shrink. A plan that was bound before keeps the slots that it was bound to. If ranks share arrays, slots lie in
    memory that they share: then the host's route need not copy."""

    def __init__(self, device: Device, shares_memory: bool) -> None:
        self.device, self._shares_memory = device, shares_memory
        self.filling, self.emptying = device.new_stream(), device.new_stream()
        self._slots: list[_Slot] = []

    def slots(self, number: int, nbytes: int, operation: str) -> list[_Slot]:
        """Up to SLOTS slots of at least so many bytes. Raises DeviceError if there is no memory."""
        number = min(number, SLOTS)
        for i in range(number):
            old = self._slots[i].memory.size if i < len(self._slots) else 0
            if old < nbytes or i >= len(self._slots):
                room = max(nbytes, min(1 << (nbytes - 1).bit_length(), FEW), min(2 * old, 2 * nbytes))
                if nbytes >= LEAST:
                    room = max(room, SHORTEST)
                self._slots[i : i + 1] = [_Slot(self._memory(room, operation))]
        return self._slots[:number]

    def _memory(self, nbytes: int, operation: str) -> Block:
        """Pinned memory, or memory that the system may page out if there is none. Copies are slower then."""
        shared = allocate(nbytes, spare=MOST // 2) if self._shares_memory else None  # the rest is the program's
        if shared is not None:
            with suppress(MemoryError):  # the next line asks for memory of another sort
                return self.device.pin(shared)
        with suppress(MemoryError):
            return self.device.pinned(nbytes)
        try:
            return np.empty(nbytes, np.uint8)
        except MemoryError as e:
            expected = f"{nbytes} bytes of host memory, to go through from {self.device.name}"
            raise DeviceError(operation, input_of(operation), expected, "a machine that has none left") from e


class _Piece(NamedTuple):
    """What goes out, the host's route, and what goes in. Copies are pairs of views: slot, device's memory."""

    slot: _Slot
    out: tuple[View, View] | None
    run: Plan
    into: tuple[View, View] | None

    def fill(self, stream: Stream) -> Event | None:
        """Let the device fill the slot as soon as it is empty. The event is when MPI may have it, None for now."""
        work = self.slot.work
        if self.out is None:
            return work.emptied
        if work.emptied is not None:  # perhaps on another stream
            stream.wait_for(work.emptied)
        on_host, on_device = self.out
        stream.copy(on_host, on_device)
        work.filled = stream.record()
        return work.filled

    def empty(self, stream: Stream) -> None:
        """Let the device take the result out of the slot."""
        if self.into is not None:
            on_host, on_device = self.into
            stream.copy(on_device, on_host)
            self.slot.work.emptied = stream.record()


def bind(call: Call, rank: int, size: int, inner: Callable[[Call], Plan], ring: Ring, tell: Tell) -> Plan:
    """The plan of a call on plain memory of a device. ``inner`` binds a call on host memory."""
    given = call.send or call.recv
    assert given is not None
    by_rank = call.collective.by_rank
    length = call.extent(size) // size if by_rank else call.extent(size)  # of a block, or of the whole vector
    step = length if call.uneven else max(1, PIECE // given.dtype.itemsize // (size if by_rank else 1))
    starts = range(0, max(length, 1), max(step, 1))
    slots = ring.slots(len(starts), _bytes_of_slot(call, size, min(step, length)), call.operation)
    plans: dict[tuple[int, int], Plan] = {}
    pieces = []
    for i, start in enumerate(starts):
        slot, count = slots[i % len(slots)], min(step, length - start)
        part = _Part(call, rank, size, slot, start, count, length)
        key = i % len(slots), count
        if key not in plans:  # the other pieces of this slot are the same call to the host
            plans[key] = inner(part.on_host())
        pieces.append(_Piece(slot, part.out(ring.device), plans[key], part.into(ring.device)))
    if len(pieces) == 1:
        return partial(_at_once, call.operation, ring.device, pieces[0])
    return partial(_in_pieces, call.operation, ring, pieces, tell)


def _bytes_of_slot(call: Call, size: int, count: int) -> int:
    """The bytes that a piece of ``count`` elements of each block needs, on any rank."""
    buffers = [b for b in (call.send, call.recv) if b is not None]
    if call.uneven:
        elements = sum(b.count for b in buffers)
    elif call.collective.elementwise:
        elements = count
    else:
        elements = count * (call.collective.given_blocks(size) + call.collective.gotten_blocks(size))
    return max(1, elements) * buffers[0].dtype.itemsize


class _Part:
    """The elements ``start`` to ``start + count`` of each block of a call, and their places in a slot. On the host,
    everything that can be is done in place: so a slot needs less memory."""

    def __init__(self, call: Call, rank: int, size: int, slot: _Slot, start: int, count: int, length: int) -> None:
        self._call, self._rank, self._size = call, rank, size
        self._start, self._count, self._length = start, count, length
        table, memory = call.collective, slot.memory
        self._merged = (table.elementwise or table.gathers) and call.recv is not None
        self._send = self._recv = None
        if call.recv is not None:
            self._recv = host_buffer(memory, self._shape(call.recv, table.gotten_blocks(size)), call.recv.dtype)
            memory = memory[self._recv.nbytes :]
        if call.send is not None and not self._merged:
            self._send = host_buffer(memory, self._shape(call.send, table.given_blocks(size)), call.send.dtype)

    def _shape(self, b: Buffer, blocks: int) -> tuple[int, ...]:
        return (b.count,) if self._call.uneven else (blocks, self._count)

    def on_host(self) -> Call:
        """The call of this part on host memory."""
        in_place = self._merged or (self._call.in_place and self._call.recv is None)
        return replace(self._call, send=self._send, recv=self._recv, in_place=in_place)

    def out(self, device: Device) -> tuple[View, View] | None:
        """What the device copies to the host: the rank's input."""
        here, there = (input_and_output(c, self._rank, self._size)[0] for c in (self.on_host(), self._call))
        return None if here is None or there is None else self._views(device, here, there)

    def into(self, device: Device) -> tuple[View, View] | None:
        """What the host's route has computed for this rank."""
        call = self._call
        nothing_before = call.collective.prefix == "exclusive" and self._rank == 0
        if self._recv is None or call.recv is None or nothing_before or call.only_read_at(self._rank):
            return None
        return self._views(device, self._recv, call.recv)

    def _views(self, device: Device, on_host: Buffer, whole: Buffer) -> tuple[View, View]:
        """The parts of all blocks of a buffer in the slot, and in the device's memory."""
        item = whole.dtype.itemsize
        shape = on_host.shape if len(on_host.shape) == 2 else (1, on_host.count)
        pitch = (self._length if shape[0] > 1 else 0) * item
        address = whole.address + (0 if self._call.uneven else self._start * item)
        there = replace(whole, array=None, address=address, shape=shape, strides=(pitch, item), plain=False)
        here = replace(on_host, shape=shape, strides=(shape[1] * item, item))
        return device.view(here), device.view(there)


def _at_once(operation: str, device: Device, piece: _Piece) -> None:
    """A call in one piece, on the caller's own stream."""
    stream = device.current()
    try:
        filled = piece.fill(stream)
        piece.slot.work.emptied = None
        if filled is not None:
            filled.wait()
    except DeviceFailure as e:
        raise DeviceFailure(f"{operation}: {e}") from e
    piece.run()
    piece.empty(stream)


def _in_pieces(operation: str, ring: Ring, pieces: list[_Piece], tell: Tell) -> None:
    """A call in several pieces, on the streams of the ring. The caller's stream goes on after the last one."""
    caller, failure = ring.device.current(), None
    begun = caller.record()
    ring.filling.wait_for(begun)
    ring.emptying.wait_for(begun)
    try:
        filled = [piece.fill(ring.filling) for piece in pieces[: SLOTS - 1]]
        for i, piece in enumerate(pieces):
            if (event := filled[i]) is not None:
                # After a failure it goes on, because the other ranks are waiting, and tells them at the end.
                failure = failure_before(event) or failure
            piece.run()
            piece.empty(ring.emptying)
            if i + SLOTS - 1 < len(pieces):
                filled.append(pieces[i + SLOTS - 1].fill(ring.filling))
    finally:  # after an error of the host's route, too, the caller's memory is still written to
        caller.wait_for(ring.emptying.record())
    raise_any(operation, tell(failure))
