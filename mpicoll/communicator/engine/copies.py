"""Copies in host memory of what MPI cannot use where it lies, and the end of work on a device."""

from __future__ import annotations

from mpicoll.arrays.buffers import Buffer, host_buffer
from mpicoll.devices.registry import device_named


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
