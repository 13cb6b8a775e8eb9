"""Copies without gaps of what MPI cannot use where it lies, in the place of an array during a call.

A plan that packs holds addresses, as every plan does. It reads and writes the array's memory as it lies there, in each
call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays.buffers import Buffer, as_buffer, host_buffer, strided
from mpicoll.arrays.kernels import storage
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.communicator.engine.requests import hold_back
from mpicoll.devices.cuda import device_named
from mpicoll.fabrics.fabric import Transfer


def copied_to_host(b: Buffer) -> Buffer:
    """A plain copy in host memory, after what the caller has queued. It is complete when this returns."""
    if b.device == "cpu":
        return b.on_host()
    device = device_named(b.device)
    _follow(b)
    stream, host = device.current(), host_buffer(device.pinned(b.nbytes), b.shape, b.dtype)
    stream.copy(device.view(host), device.view(b))
    stream.record().wait()
    return host


def written_back(b: Buffer, host: Buffer) -> None:
    """Write the elements of a copy in host memory, in order, to where they belong."""
    if b.device == "cpu":
        b.assign(host)
        return
    device = device_named(b.device)
    stream = device.current()
    stream.copy(device.view(b), device.view(host))
    stream.record().wait()


def settled(*buffers: Buffer | None) -> None:
    """Wait until the devices of these buffers have done what this thread has handed in, and what their libraries
    have."""
    there = [b for b in buffers if b is not None and b.device != "cpu"]
    for b in there:
        _follow(b)
    for name in {b.device for b in there}:
        device_named(name).current().record().wait()


def _follow(b: Buffer) -> None:
    """Let the current stream go on after the stream on which the buffer's library works."""
    if b.stream is not None:
        device_named(b.device).follow(b.stream)


KEPT = 64 << 10
"""Bytes of the longest copies that a message keeps for the next time. Longer ones take longer to fill than to make."""


class End(NamedTuple):
    """Memory of a message, or of a collective that does not block."""

    buffer: Buffer | None
    read: bool
    written: bool


def keeps_no_array(b: Buffer | None) -> bool:
    """Whether the buffer is memory of the host that can be read by its address, so that a plan need not keep the array.
    Else it is a device's, or torch changes what is read from there."""
    return b is None or (b.device == "cpu" and not any(b.read_as))


def ends_of(call: Call, rank: int) -> tuple[End, End]:
    """The input and the output of a collective. The output is read where it is the input, too, or may stay as it is."""
    only_read = call.only_read_at(rank)
    reads = call.in_place or only_read or call.collective.prefix is not None
    return End(call.send, True, False), End(call.recv, reads, not only_read)


def copy_of(b: Buffer, memory: NDArray[np.uint8] | None = None) -> tuple[Buffer, Plan, Plan]:
    """Memory without gaps for the elements of ``b``, a plan that fills it, and one that writes it back. The copy is in
    that ``memory``, if that is given: another call may use it until the plan is run. That of a device is filled now."""
    if b.device != "cpu":
        wire = copied_to_host(b)
        return wire, sequence(), partial(written_back, b, wire)
    if not keeps_no_array(b):
        wire = as_buffer(b.like(b.shape, memory if b.count else None), "copy", "array")
        return wire, partial(wire.assign, b), partial(b.assign, wire)
    dtype = storage(b.dtype)
    there = strided(b, dtype)
    here = np.empty(b.shape, dtype) if memory is None else memory.view(dtype).reshape(b.shape)
    wire = replace(b.part(0, b.count), array=here, address=here.ctypes.data, writable=True)
    return wire, partial(np.copyto, here, there), partial(np.copyto, there, here)


def without_gaps(
    ends: Sequence[End], workspace: Workspace | None = None
) -> tuple[list[Buffer | None], list[Plan], list[Plan]]:
    """The memory that takes the place of these ends: copies where it has gaps, or is a device's. Also what fills the
    copies before the call, and what writes them back after it. They lie in the ``workspace`` of a blocking call."""
    wires: list[Buffer | None] = []
    fills: list[Plan] = []
    backs: list[Plan] = []
    gaps = [b.nbytes for b, _, _ in ends if b is not None and not is_plain(b)]
    memory = iter(workspace.arrays(np.dtype(np.uint8), *gaps)) if workspace is not None else repeat(None)
    for b, read, written in ends:
        if b is None or is_plain(b):
            wires.append(b)
            continue
        wire, fill, back = copy_of(b, next(memory))
        wires.append(wire)
        fills += [fill] * read
        backs += [back] * written
    return wires, fills, backs


def is_plain(b: Buffer) -> bool:
    return b.plain and b.device == "cpu"


class _Copies(NamedTuple):
    """A transfer that is bound to copies, what fills these, and what writes them back."""

    transfer: Transfer
    fill: Sequence[Plan]
    back: Sequence[Plan]
    wires: Sequence[Buffer | None]


class Packed(Transfer):
    """A message, or a collective that does not block, on copies of what has gaps. It may be under way several times, so
    each time has copies of its own. Short ones serve again.

    ``bind`` binds it to memory without gaps, which takes the place of ``ends``. A message is written back if as many
    elements came as the last end has."""

    def __init__(self, bind: Callable[..., Transfer | None], *ends: End, message: bool = True) -> None:
        self._bind = bind
        self._ends = [
            end._replace(buffer=end.buffer and replace(end.buffer, array=None)) if keeps_no_array(end.buffer) else end
            for end in ends
        ]
        buffers = [end.buffer for end in ends if end.buffer is not None]
        self._serves_again = sum(b.nbytes for b in buffers) <= KEPT and all(map(keeps_no_array, buffers))
        self._free: list[_Copies] = []
        self._came: tuple[Transfer, Any] | None = None
        last = ends[-1]
        self._count = last.buffer.count if message and last.written and last.buffer is not None else None

    def now(self) -> None:
        copies = self._filled()
        transfer, begun = copies.transfer, None
        try:
            if transfer.now is not None:
                transfer.now()
            else:
                transfer.wait(begun := transfer.start())
        except BaseException:
            hold_back(copies)
            raise
        self._came = transfer, begun
        self._end(copies, begun)

    def start(self) -> tuple[_Copies, Any]:
        copies = self._filled()
        return copies, copies.transfer.start()

    def wait(self, begun: tuple[_Copies, Any]) -> None:
        try:
            begun[0].transfer.wait(begun[1])
        except BaseException:
            hold_back(begun[0])
            raise
        self._end(*begun)

    def test(self, begun: tuple[_Copies, Any]) -> bool:
        if not begun[0].transfer.test(begun[1]):
            return False
        self._end(*begun)
        return True

    def cancel(self, begun: tuple[_Copies, Any]) -> bool:
        return begun[0].transfer.cancel(begun[1])

    def source(self, begun: tuple[_Copies, Any] | None = None) -> int:
        transfer, inner = self._of(begun)
        return transfer.source(inner)

    def tag(self, begun: tuple[_Copies, Any]) -> int:
        return begun[0].transfer.tag(begun[1])

    def arrived(self, begun: tuple[_Copies, Any] | None = None) -> int | None:
        transfer, inner = self._of(begun)
        return transfer.arrived(inner)

    def _of(self, begun: tuple[_Copies, Any] | None) -> tuple[Transfer, Any]:
        """The transfer of the copies, and what stands for it there."""
        if begun is not None:
            return begun[0].transfer, begun[1]
        assert self._came is not None
        return self._came

    def _filled(self) -> _Copies:
        try:
            copies = self._free.pop()
        except IndexError:
            copies = self._made()
        for fill in copies.fill:
            fill()
        return copies

    def _made(self) -> _Copies:
        wires, fills, backs = without_gaps(self._ends)
        transfer = self._bind(*wires)
        assert transfer is not None
        return _Copies(transfer, fills, backs, wires)

    def _end(self, copies: _Copies, begun: Any) -> None:
        if self._count is None or copies.transfer.arrived(begun) == self._count:
            for back in copies.back:
                back()
        if self._serves_again:
            self._free.append(copies)
