"""Packing for arrays of a device with gaps, or in another order: during a call their elements lie without gaps
elsewhere."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.devices.device import Device
from mpicoll.fabrics.routes.devices.scratch import Scratch


def packed(call: Call, scratch: Scratch) -> Call:
    """The call on memory without gaps. Raises DeviceError if the device has none."""
    buffers = call.send, call.recv
    lengths = [0 if b is None or b.plain else b.nbytes for b in buffers]
    at = scratch.addresses(call.operation, *lengths)
    send, recv = (_without_gaps(b, address) for b, address in zip(buffers, at, strict=True))
    return replace(call, send=send, recv=recv)


def _without_gaps(b: Buffer | None, address: int) -> Buffer | None:
    """The buffer if it has no gaps, or else memory at ``address`` for its elements."""
    if b is None or b.plain:
        return None if b is None else b.part(0, b.count)
    strides = tuple(b.dtype.itemsize * prod(b.shape[i + 1 :]) for i in range(len(b.shape)))
    return replace(b, array=None, address=address, strides=strides, plain=True)


def around(device: Device, call: Call, packed: Call, scratch: Scratch, plan: Plan) -> Plan:
    """The plan of the packed call, with the copies before it and after it. They are on the caller's queue."""
    pairs = [(call.send, packed.send), (call.recv, packed.recv)]
    views = [(device.view(p), device.view(b)) for b, p in pairs if b is not None and p is not None and not b.plain]
    result = None
    if call.recv is not None and packed.recv is not None and not call.recv.plain:
        result = device.view(call.recv), device.view(packed.recv)

    def run() -> None:
        queue = device.current()
        scratch.begin(queue)
        for target, source in views:
            queue.copy(target, source)
        plan()
        if result is not None:
            queue.copy(*result)
        scratch.end(queue)

    return run
