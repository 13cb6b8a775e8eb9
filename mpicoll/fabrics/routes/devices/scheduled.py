"""Calls as schedules whose reductions happen on the device, over an MPI that takes the device's memory."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from mpicoll.algorithms.steps import RecvReduce, Schedule
from mpicoll.arrays import kernels
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.devices.device import Device, View
from mpicoll.fabrics.routes.devices.failures import raise_any
from mpicoll.fabrics.routes.devices.scratch import Scratch
from mpicoll.fabrics.routes.interpreter import carry_out
from mpicoll.fabrics.routes.spaces import Spaces
from mpicoll.fabrics.transports.on_device import OnDevice, on_device


def bind(comm: MPI.Intracomm, call: Call, schedule: Schedule, device: Device, scratch: Scratch) -> Plan:
    """The plan of this rank's schedule, on plain memory of the device. Raises DeviceError if it has no memory to work
    in."""
    rank, size, reduction = comm.rank, comm.size, call.reduction
    memory = call.send or call.recv
    dtype = np.dtype(np.uint8) if memory is None else kernels.storage(memory.dtype)
    given = None if call.send is None else kernels.values(call.send)
    out = None if call.recv is None else kernels.values(call.recv)
    factor = None if reduction is None else reduction.op.factor
    spaces = Spaces(call, schedule, rank, size, given, out)
    source = call.recv if call.send is None else call.send
    lengths = [spaces.scratch_elements, _inbox(schedule, spaces), source.count if factor is not None and source else 0]
    addresses = scratch.addresses(call.operation, *(n * dtype.itemsize for n in lengths))
    blocks, inbox, scaled = (kernels.described(a, n, dtype) for a, n in zip(addresses, lengths, strict=True))
    if factor is not None:
        spaces = Spaces(call, schedule, rank, size, scaled, out)
    spaces.use(blocks)
    assert memory is not None
    transport = OnDevice(comm, device, memory.dtype, reduction, inbox)
    carry_out(schedule, spaces, transport)
    scale = None
    if factor is not None and source is not None:
        scale = device.view(source), device.view(on_device(scaled, source.dtype, device))
    terms = call.terms(rank, size) if reduction is not None and reduction.averages and call.recv is not None else 1
    return _Plan(comm, device, call, transport, scratch, scale, terms)


class _Plan:
    """The steps, on the caller's queue, with what must be done before them and after them."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        device: Device,
        call: Call,
        transport: OnDevice,
        scratch: Scratch,
        scale: tuple[View, View] | None,
        terms: int,
    ) -> None:
        self._comm, self._operation = comm, call.operation
        self._device, self._transport, self._reduction = device, transport, call.reduction
        self._scratch = scratch
        self._scale = scale
        self._divided = None if terms < 2 or call.recv is None else (device.view(call.recv), terms, call.recv.dtype)

    def __call__(self) -> None:
        queue = self._transport.queue = self._device.current()
        self._scratch.begin(queue)
        if self._scale is not None:
            assert self._reduction is not None
            source, scaled = self._scale
            queue.combine([source], scaled, self._reduction, [self._reduction.op.factor])
        self._transport.failure = None
        for step in self._transport.steps:
            step()
        if self._divided is not None:
            queue.divide(*self._divided)
        self._scratch.end(queue)
        raise_any(self._operation, self._comm.allgather(self._transport.failure))


def _inbox(schedule: Schedule, spaces: Spaces) -> int:
    """The number of elements that are received to be reduced, in the step that has most."""
    steps = schedule.steps
    return max((sum(spaces.elements(a.blocks) for a in s if isinstance(a, RecvReduce)) for s in steps), default=0)
