"""From a call to its plan. Memory that a fabric cannot use as it lies goes through copies in host memory.

These are arrays with gaps or in another order, and GPU memory where the MPI does not take it or mpicoll itself reduces
the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mpicoll.arrays.buffers import Buffer, loaded_torch
from mpicoll.calls.call import Call
from mpicoll.calls.choice import Choice, Native
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.fabrics.fabric import Fabric

__all__ = ["bind", "order_after_stream"]

Choose = Callable[[Call], Choice]
"""Chooses how a call is carried out, from what is known of the ranks' shared memory when it is asked. It holds no call:
a plan that keeps it must not keep arrays."""


def bind(fabric: Fabric, call: Call, choose: Choose, workspace: Workspace) -> tuple[Plan, bool]:
    """The plan of the call, and whether it may serve again: one that copies is bound afresh each time."""
    buffers = [b for b in (call.send, call.recv) if b is not None]
    usable = all(fabric.usable(b) for b in buffers)
    on_device = [b for b in buffers if b.device != "cpu"]
    if usable:
        for b in on_device:
            order_after_stream(b)
    lasts = usable and not on_device
    if fabric.settled or not fabric.is_long(call):
        return _bound(fabric, call, choose(call), workspace), lasts
    choose(call)  # a wrong algorithm is refused here and now
    return _Later(fabric, call.without_arrays() if lasts else call, choose, workspace), lasts


class _Later:
    """A long call that is handed in before it is known whether the ranks have memory to share.

    When it is run, all ranks are at the same call. So they ask for the memory together, or all know that there is none,
    and make the same choice. A plan that was bound before they learned that is bound anew."""

    def __init__(self, fabric: Fabric, call: Call, choose: Choose, workspace: Workspace) -> None:
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
    buffers = [b for b in (call.send, call.recv) if b is not None]
    on_device = any(b.device != "cpu" for b in buffers)
    if all(fabric.usable(b) for b in buffers) and (not on_device or _by_mpi_alone(call, choice)):
        return fabric.bind(call, choice, workspace)
    return partial(_through_copies, fabric, call, choice, workspace)


def order_after_stream(b: Buffer) -> None:
    """Wait for what the caller has queued on its current stream: an MPI knows nothing of streams."""
    if b.device != "cpu":
        loaded_torch().cuda.current_stream(b.device).synchronize()


def _by_mpi_alone(call: Call, choice: Choice) -> bool:
    """Whether the MPI library alone touches the memory. mpicoll's own arithmetic and copies need host memory."""
    arithmetic = call.reduction is not None and (call.reduction.averages or call.reduction.op.factor is not None)
    return choice == Native() and not arithmetic and not call.in_place


def _through_copies(fabric: Fabric, call: Call, choice: Choice, workspace: Workspace) -> None:
    send, recv = (b if b is None or (b.plain and b.device == "cpu") else b.on_host() for b in (call.send, call.recv))
    plan = fabric.bind(replace(call, send=send, recv=recv), choice, workspace)
    plan()
    if recv is not None and call.recv is not None and recv is not call.recv and not call.only_read_at(fabric.rank):
        call.recv.assign(recv)
