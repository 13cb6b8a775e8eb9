"""Calls as schedules between the memory of devices, over an MPI that takes addresses of such memory.

The MPI knows nothing of streams. So before the messages of a step the host waits for what the stream has to do. The
reductions and copies of a step are handed in to the stream, and the host goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mpi4py import MPI

from mpicoll.algorithms.steps import RecvReduce, Schedule
from mpicoll.arrays import kernels
from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import Op
from mpicoll.calls.call import Call
from mpicoll.devices.device import Device, Stream, View, failure_before, raise_any
from mpicoll.fabrics.routes.devices.scratch import Scratch
from mpicoll.fabrics.routes.scheduled import Spaces, execute
from mpicoll.fabrics.transports.memory import moved_as
from mpicoll.fabrics.transports.transport import Array, Region, Transport

MOST = 1 << 30  # elements in the longest message
TAG = 1  # messages between two ranks arrive in the order in which they are sent, so they need only one tag


_Message = tuple[int, int, int]  # the peer, the address and the number of elements


@dataclass
class _Step:
    """What is done in a step: messages, pairs of rows with the result, and pairs of a copy's target and source."""

    sends: list[_Message] = field(default_factory=list)
    receives: list[_Message] = field(default_factory=list)
    combines: list[tuple[tuple[View, View], View]] = field(default_factory=list)
    copies: list[tuple[View, View]] = field(default_factory=list)


class ScheduledPlan(Transport):
    """The plan of this rank's schedule, on plain memory of the device. Arrays describe memory, and are not read."""

    def __init__(self, comm: MPI.Intracomm, call: Call, schedule: Schedule, device: Device, scratch: Scratch) -> None:
        """Raises DeviceError if the device has no memory to work in."""
        self._comm, self._device, self._scratch, self._operation = comm, device, scratch, call.operation
        source = call.recv if call.send is None else call.send
        assert source is not None
        rank, size, reduction = comm.rank, comm.size, call.reduction
        self._dtype, dtype = source.dtype, kernels.storage(source.dtype)
        self._kind = moved_as(source.dtype.itemsize)
        self._steps: list[_Step] = []
        self._step, self._used = _Step(), 0
        spaces = Spaces(call, schedule, rank, size)
        scales = reduction is not None and reduction.op.factor is not None
        lengths = [spaces.scratch_elements, _inbox(schedule, spaces), source.count if scales else 0]
        addresses = scratch.addresses(call.operation, *(n * dtype.itemsize for n in lengths))
        blocks, self._inbox, scaled = (kernels.described(a, n, dtype) for a, n in zip(addresses, lengths, strict=True))
        spaces.use(blocks, scaled if scales else None)
        self._reduction = reduction
        self._scale = self._divide = None
        if reduction is not None and scales:
            self._scale = [device.view(source)], self._view(scaled), reduction, [reduction.op.factor]
        if reduction is not None and (scales or reduction.averages):
            self._reduction = replace(reduction, op=Op("sum"))
        if reduction is not None and reduction.averages and call.recv is not None and call.terms(rank, size) > 1:
            self._divide = device.view(call.recv), call.terms(rank, size), call.recv.dtype
        execute(schedule, spaces, self)

    def __call__(self) -> None:
        stream, failures = self._device.current(), []
        self._scratch.begin(stream)
        if self._scale is not None:
            stream.combine(*self._scale)
        for step in self._steps:
            failures.append(self._run(stream, step))
        if self._divide is not None:
            stream.divide(*self._divide)
        self._scratch.end(stream)
        raise_any(self._operation, self._comm.allgather(next(filter(None, failures), None)))

    def _run(self, stream: Stream, step: _Step) -> str | None:
        """Carry a step out. Returns what has failed before it: the other ranks wait for its messages all the same."""
        failure = None
        if step.sends or step.receives:
            failure = failure_before(stream.record())
            requests = [self._comm.Irecv(self._specified(*there), peer, TAG) for peer, *there in step.receives]
            requests += [self._comm.Isend(self._specified(*there), peer, TAG) for peer, *there in step.sends]
            MPI.Request.Waitall(requests)
        for rows, out in step.combines:
            assert self._reduction is not None
            stream.combine(rows, out, self._reduction)
        for target, source in step.copies:
            stream.copy(target, source)
        return failure

    def _specified(self, address: int, count: int) -> list[object]:
        """mpi4py's specification of a message, at the address by which MPI reaches the memory now."""
        if not count:
            return [None, 0, MPI.BYTE]
        nbytes = count * self._dtype.itemsize
        return [MPI.buffer.fromaddress(self._device.for_mpi(address, nbytes), nbytes), count, self._kind]

    # -- the actions of a step, as they are handed in -------------------------------------------------------------

    def send(self, peer: int, region: Region) -> None:
        self._step.sends += _messages(peer, region)

    def recv(self, peer: int, region: Region) -> None:
        self._step.receives += _messages(peer, region)

    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        for ours, target in zip(mine, into, strict=True):
            if target.size:
                theirs = self._inbox[self._used : self._used + target.size]
                self._used += target.size
                self._step.receives += _messages(peer, [theirs])
                first, second = (ours, theirs) if mine_first else (theirs, ours)
                self._step.combines.append(((self._view(first), self._view(second)), self._view(target)))

    def copy(self, source: Region, target: Region) -> None:
        for from_, into in zip(source, target, strict=True):
            if from_.size and from_.ctypes.data != into.ctypes.data:
                self._step.copies.append((self._view(into), self._view(from_)))

    def end_step(self) -> None:
        self._steps.append(self._step)
        self._step, self._used = _Step(), 0

    def _view(self, array: Array) -> View:
        there = Buffer(None, array.ctypes.data, array.shape, array.strides, self._dtype, self._device.name, True, True)
        return self._device.view(there)


def _messages(peer: int, region: Region) -> Iterator[_Message]:
    """One message for each run, and for a long run several. A mere signal is a message of nothing."""
    if not region:
        yield peer, 0, 0
    for run in region:
        for i in range(0, run.size, MOST):
            yield peer, run[i : i + MOST].ctypes.data, min(run.size - i, MOST)


def _inbox(schedule: Schedule, spaces: Spaces) -> int:
    """The number of elements that are received to be reduced, in the step that has most."""
    steps = schedule.steps
    return max((sum(spaces.elements(a.blocks) for a in s if isinstance(a, RecvReduce)) for s in steps), default=0)
