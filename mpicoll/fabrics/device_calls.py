"""Calls on the memory of a device, by the route that is named or the best one there is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choice import DEVICE, IPC, NATIVE, STAGED, Choice, Native, algorithm_of
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.calls.record import Record
from mpicoll.calls.select import between_memories, device_route
from mpicoll.devices.device import Device
from mpicoll.devices.registry import device_named
from mpicoll.errors import DeviceError
from mpicoll.fabrics.fabric import Fabric
from mpicoll.routes.devices import ipc, packing, staged
from mpicoll.routes.devices.ring import Ring
from mpicoll.routes.devices.scratch import Scratch

__all__ = ["DeviceCalls"]


class DeviceCalls:
    """What one communicator keeps for its calls on device memory. ``choose`` chooses how the host's route works."""

    def __init__(self, fabric: Fabric, choose: Callable[[str | None, Call], Choice], workspace: Workspace) -> None:
        self._fabric, self._choose, self._workspace = fabric, choose, workspace
        self._kept: dict[str, _Kept] = {}
        self.only: str | None = None
        """The device whose memory is taken; None if it may be any device's."""

    def check(self, b: Buffer, operation: str, argument: str) -> None:
        """Raise DeviceError if the buffer lies on another device than the one that is taken."""
        if self.only not in (None, b.device) and b.device != "cpu":
            expected = f"memory of the host or of {self.only}, the device of the group"
            raise DeviceError(operation, argument, expected, b.device)

    def bind(self, call: Call, algorithm: str | None, record: Record) -> Plan:
        """The plan of a call whose memory lies on a device. It says its route in the ``record``."""
        buffers = [b for b in (call.send, call.recv) if b is not None]
        self.check(buffers[0], call.operation, "x" if call.send is not None or call.in_place else "out")
        device = device_named(buffers[0].device)
        if device.name not in self._kept:
            self._kept[device.name] = _Kept(device, self._fabric)
        kept = self._kept[device.name]
        if all(b.plain for b in buffers):
            return self._plain(kept, call.without_arrays(), algorithm, record)
        packed = packing.packed(call, kept.packs)
        return packing.around(device, call, packed, kept.packs, self._plain(kept, packed, algorithm, record))

    def _plain(self, kept: _Kept, call: Call, algorithm: str | None, record: Record) -> Plan:
        """The plan of a call on plain memory."""
        route, named = device_route(algorithm)
        fabric, device = self._fabric, kept.device
        choose = partial(self._choose, named)
        choice = choose(call)  # a wrong algorithm is refused here and now
        if algorithm in (None, NATIVE) and self._mpi_takes(call) and _by_mpi_alone(call, choice):
            by_mpi = fabric.bind(call, choice, self._workspace)
            return _recorded(record, NATIVE, sequence(partial(_wait_for_caller, device), by_mpi))
        if route == DEVICE and (call.reduction is None or device.reduces(call.reduction)):
            there = self._choose(named or between_memories(call), call)
            plan = fabric.bind_on_device(call, there, device, kept.scratch)
            return _recorded(record, f"{DEVICE}:{algorithm_of(there)}", plan)
        if route == IPC and fabric.one_node and ipc.serves(call, device):
            otherwise = self._staged(kept, call, choose, record)
            return _recorded(record, IPC, ipc.bind(call, kept.peers, kept.scratch, otherwise))
        return self._staged(kept, call, choose, record)

    def _staged(self, kept: _Kept, call: Call, choose: Callable[[Call], Choice], record: Record) -> Plan:
        fabric = self._fabric

        def bound() -> Plan:
            used: dict[str, None] = {}

            def on_host(part: Call) -> Plan:
                choice = choose(part)
                used[algorithm_of(choice)] = None  # the last piece is shorter, and may go another way
                return fabric.bind(part, choice, self._workspace)

            plan = staged.bind(call, fabric.rank, fabric.size, on_host, kept.ring, fabric.allgather)
            return _recorded(record, f"{STAGED}:{'+'.join(used)}", plan)

        plan = bound()  # what cannot be bound is refused here and now
        if fabric.settled or not fabric.is_long(call) or choose(call) == Native():
            return plan
        return _AtFirst(fabric.settle, bound)

    def _mpi_takes(self, call: Call) -> bool:
        return all(b is None or self._fabric.usable(b) for b in (call.send, call.recv))


class _Kept:
    """What a communicator keeps for one device."""

    def __init__(self, device: Device, fabric: Fabric) -> None:
        self.device = device
        self.ring = Ring(device)
        self.scratch, self.packs = Scratch(device), Scratch(device)
        self.peers = ipc.Peers(fabric.rank, fabric.size, device, fabric.allgather)


def _by_mpi_alone(call: Call, choice: Choice) -> bool:
    """Whether the MPI library alone touches the memory. mpicoll's own arithmetic and copies need host memory."""
    arithmetic = call.reduction is not None and (call.reduction.averages or call.reduction.op.factor is not None)
    return choice == Native() and not arithmetic and not call.in_place


def _recorded(record: Record, route: str, plan: Plan) -> Plan:
    """The plan, which says in the record by which route it goes. It says so in each run, because a call that was bound
    for ``ipc`` may find that it has to be staged."""
    record.route = route
    return sequence(partial(setattr, record, "route", route), plan)


def _wait_for_caller(device: Device) -> None:
    """Wait for what the caller has queued: an MPI knows nothing of queues."""
    device.current().record().wait()


class _AtFirst:
    """A plan that is bound at its first run, when all ranks are at the same call and can ``settle``."""

    def __init__(self, settle: Callable[[], None], bind: Callable[[], Plan]) -> None:
        self._settle, self._bind = settle, bind
        self._plan: Plan | None = None

    def __call__(self) -> None:
        if self._plan is None:
            self._settle()
            self._plan = self._bind()
        self._plan()
