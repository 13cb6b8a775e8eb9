"""From a call to its plan. Memory that a fabric cannot use as it lies takes another way.

Arrays of the host with gaps or in another order are copied. Memory of a device takes one of the routes for devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mpicoll.arrays.buffers import Buffer, host_buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choice import Choice, Native
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.calls.record import Record
from mpicoll.devices.registry import device_named
from mpicoll.fabrics.device_calls import DeviceCalls
from mpicoll.fabrics.fabric import Fabric

__all__ = ["bind", "copied_to_host", "written_back"]

Choose = Callable[[str | None, Call], Choice]
"""Chooses how a call is carried out, by the algorithm that is named or by what is known of the ranks' shared memory
when it is asked. It holds no call: a plan that keeps it must not keep arrays."""


def bind(
    fabric: Fabric, call: Call, algorithm: str | None, record: Record, choose: Choose, workspace: Workspace,
    device_calls: DeviceCalls,
) -> tuple[Plan, bool]:  # fmt: skip
    """The plan of the call, and whether it may serve again: one that copies an array with gaps is bound afresh each
    time. The ``record`` gets the name of a device's route. That of a host's algorithm is ``choose``'s to note."""
    buffers = [b for b in (call.send, call.recv) if b is not None]
    if any(b.device != "cpu" for b in buffers):
        return device_calls.bind(call, algorithm, record), all(b.plain for b in buffers)
    lasts = all(fabric.usable(b) for b in buffers)
    by_algorithm = partial(choose, algorithm)
    if fabric.settled or not fabric.is_long(call):
        return _bound(fabric, call, by_algorithm(call), workspace), lasts
    by_algorithm(call)  # a wrong algorithm is refused here and now
    return _Later(fabric, call.without_arrays() if lasts else call, by_algorithm, workspace), lasts


class _Later:
    """A long call that is handed in before it is known whether the ranks have memory to share.

    When it is run, all ranks are at the same call. So they ask for the memory together, or all know that there is none,
    and make the same choice. A plan that was bound before they learned that is bound anew."""

    def __init__(self, fabric: Fabric, call: Call, choose: Callable[[Call], Choice], workspace: Workspace) -> None:
        self._fabric, self._call, self._choose, self._workspace = fabric, call, choose, workspace
        self._plan: Plan | None = None
        self._shares = False

    def __call__(self) -> None:
        fabric = self._fabric
        if self._plan is None or self._shares != fabric.shares:
            choice = self._choose(self._call)
            if choice != Native() and not fabric.settled:
                fabric.settle()
                choice = self._choose(self._call)
            self._plan, self._shares = _bound(fabric, self._call, choice, self._workspace), fabric.shares
        self._plan()


def _bound(fabric: Fabric, call: Call, choice: Choice, workspace: Workspace) -> Plan:
    if all(b is None or b.plain for b in (call.send, call.recv)):
        return fabric.bind(call, choice, workspace)
    return partial(_through_copies, fabric, call, choice, workspace)


def _through_copies(fabric: Fabric, call: Call, choice: Choice, workspace: Workspace) -> None:
    send, recv = (b if b is None or b.plain else b.on_host() for b in (call.send, call.recv))
    plan = fabric.bind(replace(call, send=send, recv=recv), choice, workspace)
    plan()
    if recv is not None and call.recv is not None and recv is not call.recv and not call.only_read_at(fabric.rank):
        call.recv.assign(recv)


# -- messages ---------------------------------------------------------------------------------------------------------


def copied_to_host(b: Buffer) -> Buffer:
    """A plain copy in host memory, after what the caller has queued. It is complete when this returns."""
    if b.device == "cpu":
        return b.on_host()
    device = device_named(b.device)
    queue, host = device.current(), host_buffer(device.pinned(b.nbytes), b.shape, b.dtype)
    queue.copy(device.view(host), device.view(b))
    queue.record().wait()
    return host


def written_back(b: Buffer, host: Buffer) -> None:
    """Write the elements of a copy in host memory, in order, to where they belong."""
    if b.device == "cpu":
        b.assign(host)
        return
    device = device_named(b.device)
    queue = device.current()
    queue.copy(device.view(b), device.view(host))
    queue.record().wait()
