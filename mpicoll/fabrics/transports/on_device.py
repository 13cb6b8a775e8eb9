"""A schedule's messages between the memory of devices, over an MPI that takes addresses of such memory.

The MPI knows nothing of queues. So before the messages of a step the host waits for what the queue has to do. The
reductions and copies of a step are handed in to the queue, and the host goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from mpi4py import MPI

from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import Dtype, Op, Reduction
from mpicoll.calls.plan import Plan
from mpicoll.devices.device import Device, Queue, View
from mpicoll.errors import DeviceFailure
from mpicoll.fabrics.transports.memory import moved_as
from mpicoll.fabrics.transports.transport import Array, Region, Transport

MOST = 1 << 30
"""Elements in the longest message."""
TAG = 1
"""Messages between two ranks arrive in the order in which they are sent, so they need only one tag."""


class _Message(NamedTuple):
    peer: int
    address: int
    length: int


def on_device(array: Array, dtype: Dtype, device: Device) -> Buffer:
    """The memory that an array describes. Nobody may read it through the array."""
    return Buffer(None, array.ctypes.data, array.shape, array.strides, dtype, device.name, True, True)


class OnDevice(Transport):
    """``steps`` are the plans of the steps so far. ``inbox`` is memory of the device, for what is received to be
    reduced. Arrays describe memory, and are not read.

    The plans work on ``queue``, which is set before they run. If its work fails they go on, because other ranks wait
    for their messages. Then ``failure`` says what has failed."""

    queue: Queue
    failure: str | None = None

    def __init__(
        self, comm: MPI.Intracomm, device: Device, dtype: Dtype, reduction: Reduction | None, inbox: Array
    ) -> None:
        self._comm, self._device, self._dtype = comm, device, dtype
        self._reduction = None if reduction is None else replace(reduction, op=Op("sum"))
        if reduction is not None and not reduction.averages and reduction.op.factor is None:
            self._reduction = reduction
        self._inbox, self._used = inbox, 0
        self._kind = moved_as(dtype.itemsize)
        self.steps: list[Plan] = []
        self._sends: list[_Message] = []
        self._receives: list[_Message] = []
        self._combines: list[tuple[tuple[View, View], View]] = []
        self._copies: list[tuple[View, View]] = []

    def send(self, peer: int, region: Region) -> None:
        self._sends += self._messages(peer, region)

    def recv(self, peer: int, region: Region) -> None:
        self._receives += self._messages(peer, region)

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        for ours, target in zip(mine, into, strict=True):
            if target.size:
                theirs = self._inbox[self._used : self._used + target.size]
                self._used += target.size
                self._receives += self._messages(peer, [theirs])
                rows = (ours, theirs) if mine_first else (theirs, ours)
                self._combines.append(((self._view(rows[0]), self._view(rows[1])), self._view(target)))

    def copy(self, source: Region, target: Region) -> None:
        for from_, into in zip(source, target, strict=True):
            if from_.size and from_.ctypes.data != into.ctypes.data:
                self._copies.append((self._view(into), self._view(from_)))

    def end_step(self) -> None:
        self.steps.append(partial(self._run, self._sends, self._receives, self._combines, self._copies))
        self._sends, self._receives, self._combines, self._copies = [], [], [], []
        self._used = 0

    def _view(self, array: Array) -> View:
        return self._device.view(on_device(array, self._dtype, self._device))

    def _messages(self, peer: int, region: Region) -> list[_Message]:
        """One message for each run, and for a long run several. A mere signal is a message of nothing."""
        if not region:
            return [_Message(peer, 0, 0)]
        return [
            _Message(peer, run[i : i + MOST].ctypes.data, run[i : i + MOST].size)
            for run in region
            for i in range(0, run.size, MOST)
        ]

    def _run(
        self,
        sends: Sequence[_Message],
        receives: Sequence[_Message],
        combines: Sequence[tuple[tuple[View, View], View]],
        copies: Sequence[tuple[View, View]],
    ) -> None:
        queue = self.queue
        if sends or receives:
            self._wait()
            requests = [self._comm.Irecv(self._specified(m), m.peer, TAG) for m in receives]
            requests += [self._comm.Isend(self._specified(m), m.peer, TAG) for m in sends]
            MPI.Request.Waitall(requests)
        for rows, out in combines:
            assert self._reduction is not None
            queue.combine(rows, out, self._reduction)
        for target, source in copies:
            queue.copy(target, source)

    def _wait(self) -> None:
        """Wait for what the queue has to do."""
        try:
            self.queue.record().wait()
        except DeviceFailure as e:
            self.failure = self.failure or str(e)

    def _specified(self, message: _Message) -> list[object]:
        """mpi4py's specification of a message, at the address by which MPI reaches the memory now."""
        if not message.length:
            return [None, 0, MPI.BYTE]
        nbytes = message.length * self._dtype.itemsize
        address = self._device.for_mpi(message.address, nbytes)
        return [MPI.buffer.fromaddress(address, nbytes), message.length, self._kind]
