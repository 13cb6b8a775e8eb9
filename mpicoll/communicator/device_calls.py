"""Calls on the memory of a device, by the route that is named or the best one there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choice import Choice, Native
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.calls.select import device_route
from mpicoll.devices.device import Device, Event, Memory
from mpicoll.devices.registry import device_named
from mpicoll.errors import DeviceError
from mpicoll.fabrics.fabric import Fabric
from mpicoll.routes.devices import staged
from mpicoll.routes.devices.ring import Ring

__all__ = ["DeviceCalls"]


class DeviceCalls:
    """What one communicator keeps for its calls on device memory. ``choose`` chooses how the host's route works."""

    def __init__(self, fabric: Fabric, choose: Callable[[str | None, Call], Choice], workspace: Workspace) -> None:
        self._fabric, self._choose, self._workspace = fabric, choose, workspace
        self._rings: dict[str, Ring] = {}
        self._packs: dict[str, _Pack] = {}

    def bind(self, call: Call, algorithm: str | None) -> Plan:
        """The plan of a call whose memory lies on a device."""
        buffers = [b for b in (call.send, call.recv) if b is not None]
        device = device_named(buffers[0].device)
        if all(b.plain for b in buffers):
            return self._plain(device, call.without_arrays(), algorithm)
        pack = self._packs.setdefault(device.name, _Pack(device))
        packed = pack.buffers(call)
        return _Packed(pack, call, packed, self._plain(device, packed, algorithm))

    def _plain(self, device: Device, call: Call, algorithm: str | None) -> Plan:
        route, on_host = device_route(algorithm)
        choose = partial(self._choose, on_host)
        choice = choose(call)  # a wrong algorithm is refused here and now
        if algorithm in (None, "native") and self._mpi_takes(call) and _by_mpi_alone(call, choice):
            return sequence(partial(_wait_for_caller, device), self._fabric.bind(call, choice, self._workspace))
        ring = self._ring(device)
        plan = partial(self._staged, ring, call, choose)
        if self._fabric.settled or not self._fabric.is_long(call):
            return plan()
        plan()  # what cannot be bound is refused here and now
        return _AtFirst(self._fabric.settle, plan)

    def _staged(self, ring: Ring, call: Call, choose: Callable[[Call], Choice]) -> Plan:
        fabric = self._fabric

        def on_host(part: Call) -> Plan:
            return fabric.bind(part, choose(part), self._workspace)

        return staged.bind(call, fabric.rank, fabric.size, on_host, ring, fabric.allgather)

    def _mpi_takes(self, call: Call) -> bool:
        return all(b is None or self._fabric.usable(b) for b in (call.send, call.recv))

    def _ring(self, device: Device) -> Ring:
        if device.name not in self._rings:
            self._rings[device.name] = Ring(device)
        return self._rings[device.name]


def _by_mpi_alone(call: Call, choice: Choice) -> bool:
    """Whether the MPI library alone touches the memory. mpicoll's own arithmetic and copies need host memory."""
    arithmetic = call.reduction is not None and (call.reduction.averages or call.reduction.op.factor is not None)
    return choice == Native() and not arithmetic and not call.in_place


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


class _Pack:
    """Memory of a device in which arrays with gaps, or in another order, lie without gaps during a call. It grows, and
    never shrinks. ``free`` is when the call before is done with it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.free: Event | None = None
        self._memory: Memory | None = None
        self._size = 0

    def buffers(self, call: Call) -> Call:
        """The call on plain memory. Raises DeviceError if there is none."""
        given = [b for b in (call.send, call.recv) if b is not None and not b.plain]
        room = sum(_aligned(b) for b in given)
        if self._memory is None or self._size < room:
            try:
                self._memory, self._size = self.device.allocate(room), room
            except MemoryError as e:
                expected = f"an array without gaps, or {room} bytes of {self.device.name} for a copy"
                raise DeviceError(call.operation, "x", expected, f"one with gaps ({e})") from e
            self.free = None
        address = self._memory.address
        plain: list[Buffer | None] = []
        for b in (call.send, call.recv):
            if b is None or b.plain:
                plain.append(b)
                continue
            strides = tuple(b.dtype.itemsize * prod(b.shape[i + 1 :]) for i in range(len(b.shape)))
            plain.append(replace(b, array=None, address=address, strides=strides, plain=True))
            address += _aligned(b)
        return replace(call, send=plain[0], recv=plain[1])


def _aligned(b: Buffer) -> int:
    return -(-max(b.nbytes, 1) // 256) * 256


class _Packed:
    """A plan around which arrays are packed and unpacked, on the caller's queue."""

    def __init__(self, pack: _Pack, call: Call, packed: Call, plan: Plan) -> None:
        self._pack, self._plan = pack, plan
        pairs = [(call.send, packed.send), (call.recv, packed.recv)]
        view = pack.device.view
        self._views = [None if a is None or b is None or a.plain else (view(a), view(b)) for a, b in pairs]

    def __call__(self) -> None:
        pack = self._pack
        queue = pack.device.current()
        if pack.free is not None:
            queue.wait_for(pack.free)
        for pair in filter(None, self._views):
            queue.copy(pair[1], pair[0])
        self._plan()
        if self._views[1] is not None:
            queue.copy(*self._views[1])
        pack.free = queue.record()
