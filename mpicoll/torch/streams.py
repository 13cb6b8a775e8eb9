"""The place of a group's collective in the queues of devices.

A collective of the group's queue works in another thread than the one that called it. There the device's current queue
is not the caller's. So the group has a queue of its own on each device. It waits for what the caller had queued when it
called, and whoever waits for the collective lets its own queue wait for its end. Nobody waits for more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType

import torch

from mpicoll.arrays.buffers import as_buffer
from mpicoll.devices.cuda import device_named
from mpicoll.devices.device import Device, Event, Stream


class GroupStreams:
    """The queues of a group, one for each device that its collectives have worked on."""

    def __init__(self) -> None:
        self._of: dict[str, Stream] = {}

    def guard(self, tensors: Iterable[torch.Tensor]) -> StreamGuard | None:
        """The guard of a collective on these tensors, after what this thread has queued. None if no device has them."""
        elsewhere = [tensor for tensor in tensors if not tensor.is_cpu]
        if not elsewhere:
            return None
        names = dict.fromkeys(as_buffer(tensor, "mpicoll.torch", "tensor").device for tensor in elsewhere)
        return StreamGuard([(device, self._queue(device)) for device in map(device_named, names)], elsewhere)

    def _queue(self, device: Device) -> Stream:
        if device.name not in self._of:
            self._of[device.name] = device.new_stream()
        return self._of[device.name]


class StreamGuard:
    """One collective's. As a context, it is where the collective works: the group's queues are current there."""

    def __init__(self, queues: list[tuple[Device, Stream]], tensors: Iterable[torch.Tensor]) -> None:
        self._queues = queues
        self._begun = [device.current().record() for device, _ in queues]
        self._ended: list[Event] = []
        self._stack = ExitStack()
        storages = {tensor.untyped_storage().device for tensor in tensors}
        self.known_to_torch = sorted(str(device) for device in storages if device.type != "cpu")
        """The devices whose streams torch's futures know. A simulated device is none of them."""

    def __enter__(self) -> None:
        for (device, queue), begun in zip(self._queues, self._begun, strict=True):
            queue.wait_for(begun)
            self._stack.enter_context(device.using(queue))

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def take(self, run: Callable[[], None]) -> None:
        """Hand in the collective's work, by ``run``."""
        try:
            run()
        finally:
            self._ended = [queue.record() for _, queue in self._queues]

    def follow(self) -> None:
        """Let this thread's current queues go on after the collective."""
        for (device, _), ended in zip(self._queues, self._ended, strict=False):  # none has ended if it was given up
            device.current().wait_for(ended)

    def is_past(self) -> bool:
        """Whether the devices have come to its end."""
        return all(ended.is_past() for ended in self._ended)

    def wait(self) -> None:
        """Let the host wait until they have. Raises DeviceFailure if their work failed."""
        for ended in self._ended:
            ended.wait()
