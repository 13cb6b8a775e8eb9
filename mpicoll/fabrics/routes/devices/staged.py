"""Calls on device memory, through the host: copy out, let the host's route work, copy in.

A long call is cut into pieces. While the host's route works on one piece, the device copies the next one out and the
last one in. All ranks cut alike, because their vectors are equally long: a vector that is combined element by element
is cut into runs of elements, and a vector of blocks is cut into the same part of each block. A short call is one piece.
It needs no queues but the caller's, and the host waits once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.devices.device import Device, Event, Queue, View
from mpicoll.errors import DeviceFailure
from mpicoll.fabrics.routes.devices.failures import Tell, failure_before, raise_any
from mpicoll.fabrics.routes.devices.ring import SLOTS, Ring, Slot

PIECE = 4 << 20
"""Bytes of the vector in a piece. Two ranks on an H200 took 17.8 ms for an all-reduce of 64 MiB in pieces of 1 MiB,
13.4 ms in pieces of 2 MiB, and 9.3 ms in pieces of 4 MiB."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    """What is copied between the device and a slot."""

    on_device: View
    on_host: View


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of the call: what goes out, the host's route, and what goes in."""

    slot: Slot
    out: _Transfer | None
    run: Plan
    into: _Transfer | None


def bind(call: Call, rank: int, size: int, inner: Callable[[Call], Plan], ring: Ring, tell: Tell) -> Plan:
    """The plan of a call on plain memory of a device. ``inner`` binds a call on host memory."""
    pieces = _cut(call, rank, size, inner, ring)
    if len(pieces) == 1:
        return _AtOnce(call.operation, ring.device, pieces[0])
    return _InPieces(call.operation, ring, pieces, tell)


def _cut(call: Call, rank: int, size: int, inner: Callable[[Call], Plan], ring: Ring) -> list[_Piece]:
    given = call.send or call.recv
    assert given is not None
    by_rank = call.collective.by_rank
    length = call.extent(size) // size if by_rank else call.extent(size)  # of a block, or of the whole vector
    step = length if call.uneven else max(1, PIECE // given.dtype.itemsize // (size if by_rank else 1))
    starts = range(0, max(length, 1), max(step, 1))
    nbytes = _bytes_of_slot(call, size, min(step, length))
    slots = ring.slots(len(starts), nbytes, call.operation)
    plans: dict[tuple[int, int], Plan] = {}
    pieces = []
    for i, start in enumerate(starts):
        slot, count = slots[i % len(slots)], min(step, length - start)
        part = _Part(call, rank, size, slot, start, count, length)
        key = i % len(slots), count
        if key not in plans:  # the other pieces of this slot are the same call to the host
            plans[key] = inner(part.on_host())
        pieces.append(_Piece(slot, part.out(ring.device), plans[key], part.into(ring.device)))
    return pieces


def _bytes_of_slot(call: Call, size: int, count: int) -> int:
    """The bytes that a piece of ``count`` elements of each block needs, on any rank."""
    memory = call.send or call.recv
    assert memory is not None
    if call.uneven:
        elements = sum(b.count for b in (call.send, call.recv) if b is not None)
    elif call.collective.elementwise:
        elements = count
    else:
        elements = count * (call.collective.given_blocks(size) + call.collective.gotten_blocks(size))
    return max(1, elements) * memory.dtype.itemsize


class _Part:
    """The elements ``start`` to ``start + count`` of each block of a call, and their places in a slot.

    On the host, everything that can be is done in place: so a slot needs less memory."""

    def __init__(self, call: Call, rank: int, size: int, slot: Slot, start: int, count: int, length: int) -> None:
        self._call, self._rank, self._size, self._slot = call, rank, size, slot
        self._start, self._count, self._length = start, count, length
        table = call.collective
        self._merged = (table.elementwise or table.gathers) and call.recv is not None
        taken = 0
        self._send = self._recv = None
        if call.recv is not None:
            self._recv = slot.buffer(0, self._shape(call.recv, table.gotten_blocks(size)), call.recv.dtype)
            taken = self._recv.nbytes
        if call.send is not None and not self._merged:
            self._send = slot.buffer(taken, self._shape(call.send, table.given_blocks(size)), call.send.dtype)

    def _shape(self, b: Buffer, blocks: int) -> tuple[int, ...]:
        return (b.count,) if self._call.uneven else (blocks, self._count)

    def on_host(self) -> Call:
        """The call of this part on host memory."""
        call = self._call
        in_place = self._merged or (call.in_place and call.recv is None)
        return replace(call, send=self._send, recv=self._recv, in_place=in_place)

    def out(self, device: Device) -> _Transfer | None:
        """What the device copies to the host: the rank's input."""
        call = self._call
        if not call.collective.gives_at(self._rank, call.root):
            return None
        if self._send is not None:
            assert call.send is not None
            return self._transfer(device, call.send, self._send)
        assert self._recv is not None
        if call.collective.elementwise:
            source = call.recv if call.send is None else call.send
            assert source is not None
            return self._transfer(device, source, self._recv)
        assert call.recv is not None
        own = self._own(self._recv, self._count)
        source = self._own(call.recv, self._length) if call.send is None else call.send
        return self._transfer(device, source, own)

    def into(self, device: Device) -> _Transfer | None:
        """What the host's route has computed for this rank."""
        call = self._call
        nothing_before = call.collective.prefix == "exclusive" and self._rank == 0
        if self._recv is None or call.recv is None or nothing_before or call.only_read_at(self._rank):
            return None
        return self._transfer(device, call.recv, self._recv)

    def _own(self, b: Buffer, length: int) -> Buffer:
        """The rank's own block of a buffer whose even blocks have this length."""
        counts = self._call.recvcounts or (length,) * self._size
        start = sum(counts[: self._rank])
        return b.part(start, start + counts[self._rank])

    def _transfer(self, device: Device, whole: Buffer, on_host: Buffer) -> _Transfer:
        """Between all blocks of a buffer and their parts in the slot."""
        item = whole.dtype.itemsize
        shape = on_host.shape if len(on_host.shape) == 2 else (1, on_host.count)
        pitch = (self._length if shape[0] > 1 else 0) * item
        address = whole.address + (0 if self._call.uneven else self._start * item)
        there = replace(whole, array=None, address=address, shape=shape, strides=(pitch, item), plain=False)
        here = replace(on_host, shape=shape, strides=(shape[1] * item, item))
        return _Transfer(device.view(there), device.view(here))


class _AtOnce:
    """A call in one piece, on the caller's own queue."""

    def __init__(self, operation: str, device: Device, piece: _Piece) -> None:
        self._operation, self._device, self._piece = operation, device, piece

    def __call__(self) -> None:
        queue, piece = self._device.current(), self._piece
        try:
            self._fill(queue, piece)
        except DeviceFailure as e:
            raise DeviceFailure(f"{self._operation}: {e}") from e
        piece.run()
        if piece.into is not None:
            queue.copy(piece.into.on_device, piece.into.on_host)
            piece.slot.work.emptied = queue.record()

    def _fill(self, queue: Queue, piece: _Piece) -> None:
        """Wait until the slot is free, and filled if this rank has an input."""
        work = piece.slot.work
        emptied, work.emptied = work.emptied, None
        if piece.out is not None:
            if emptied is not None:  # perhaps on another queue than this call's
                queue.wait_for(emptied)
            queue.copy(piece.out.on_host, piece.out.on_device)
            queue.record().wait()
        elif emptied is not None:
            emptied.wait()


class _InPieces:
    """A call in several pieces, on the queues of the ring. The caller's queue goes on after the last one."""

    def __init__(self, operation: str, ring: Ring, pieces: list[_Piece], tell: Tell) -> None:
        self._operation, self._ring, self._pieces, self._tell = operation, ring, pieces, tell

    def __call__(self) -> None:
        ring = self._ring
        caller = ring.device.current()
        begun = caller.record()
        ring.filling.wait_for(begun)
        ring.emptying.wait_for(begun)
        try:
            failure = self._run()
        finally:  # after an error of the host's route, too, the caller's memory is still written to
            caller.wait_for(ring.emptying.record())
        raise_any(self._operation, self._tell(failure))

    def _run(self) -> str | None:
        """The pieces, one after another. Returns what went wrong on the device."""
        emptying, pieces = self._ring.emptying, self._pieces
        filled = [self._fill(piece) for piece in pieces[: SLOTS - 1]]
        failure = None
        for i, piece in enumerate(pieces):
            if (event := filled[i]) is not None:
                # After a failure it goes on, because the other ranks are waiting, and tells them at the end.
                failure = failure_before(event) or failure
            piece.run()
            if piece.into is not None:
                emptying.copy(piece.into.on_device, piece.into.on_host)
                piece.slot.work.emptied = emptying.record()
            if i + SLOTS - 1 < len(pieces):
                filled.append(self._fill(pieces[i + SLOTS - 1]))
        return failure

    def _fill(self, piece: _Piece) -> Event | None:
        """Let the device fill the slot as soon as it is empty. The event is when MPI may have it, None for now."""
        queue, work = self._ring.filling, piece.slot.work
        emptied = work.emptied
        if piece.out is None:
            return emptied
        if emptied is not None:
            queue.wait_for(emptied)
        queue.copy(piece.out.on_host, piece.out.on_device)
        work.filled = queue.record()
        return work.filled
