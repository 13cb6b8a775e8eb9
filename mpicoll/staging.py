"""Memory that a fabric cannot use as it lies goes through plain copies in host memory.

That is: arrays with gaps or in another order, and GPU memory where the MPI does not take it or the values are
reduced by us.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mpicoll.buffers import Buffer, loaded_torch
from mpicoll.call import Call
from mpicoll.fabrics import Fabric
from mpicoll.plan import Plan, Workspace
from mpicoll.schedule import Schedule

__all__ = ["bind", "order_after_stream"]


def bind(fabric: Fabric, call: Call, how: str | Schedule, workspace: Workspace) -> tuple[Plan, bool]:
    """The plan of the call, and whether it may serve again: one that copies is bound afresh each time."""
    buffers = [b for b in (call.send, call.recv) if b is not None]
    on_device = [b for b in buffers if b.device != "cpu"]
    if all(fabric.usable(b) for b in buffers) and (not on_device or _by_mpi_alone(call, how)):
        for b in on_device:
            order_after_stream(b)
        return fabric.bind(call, how, workspace), not on_device
    return partial(_through_copies, fabric, call, how, workspace), False


def order_after_stream(b: Buffer) -> None:
    """Wait for what the caller has queued on its current stream: an MPI knows nothing of streams."""
    if b.device != "cpu":
        loaded_torch().cuda.current_stream(b.device).synchronize()


def _by_mpi_alone(call: Call, how: str | Schedule) -> bool:
    """Whether no arithmetic and no copy of ours touches the memory, which only the host's can be."""
    ours = call.reduction is not None and (call.reduction.averages or call.reduction.op.factor is not None)
    return how == "native" and not ours and not call.in_place


def _through_copies(fabric: Fabric, call: Call, how: str | Schedule, workspace: Workspace) -> None:
    send, recv = (b if b is None or (b.plain and b.device == "cpu") else b.on_host() for b in (call.send, call.recv))
    fabric.bind(replace(call, send=send, recv=recv), how, workspace)()
    only_read = call.collective == "bcast" and fabric.rank == call.root
    if recv is not None and call.recv is not None and recv is not call.recv and not only_read:
        call.recv.assign(recv)
