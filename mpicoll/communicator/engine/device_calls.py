"""Calls on the memory of a device, by the route that is named or the best one there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Set
from copy import copy
from dataclasses import replace
from functools import partial

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choice import DEVICE, IPC, NATIVE, NODE, PATHS, STAGED, Choice, algorithm_of
from mpicoll.calls.plan import Plan, Workspace, sequence
from mpicoll.calls.select import between_memories, device_route, preferred, taken_route
from mpicoll.communicator.engine.copies import settled
from mpicoll.devices.device import Device
from mpicoll.devices.registry import device_named
from mpicoll.errors import DeviceError
from mpicoll.fabrics.fabric import Fabric
from mpicoll.fabrics.routes.devices import ipc, staged
from mpicoll.fabrics.routes.devices.scratch import Scratch, without_gaps
from mpicoll.supervise import sites
from mpicoll.supervise.record import Record

IPC_FROM = 5 << 20
"""Bytes of a vector from which ``ipc`` is chosen where all ranks share one device. Two ranks on an H200 took 1.3 times
as long as by ``staged`` for 4 MiB, and 0.14 times for 64 MiB; for 256 KiB and less, twice as long and more."""


class DeviceCalls:
    """What one communicator keeps for its calls on device memory. ``choose`` chooses how the host's route works, and
    ``on_host`` binds a call to it."""

    def __init__(
        self,
        fabric: Fabric,
        choose: Callable[[str | None, Call], Choice],
        on_host: Callable[[str | None, Call, Choice, Record], Plan],
        workspace: Workspace,
    ) -> None:
        self._fabric, self._choose, self._workspace = fabric, choose, workspace
        self._on_host = on_host
        self._kept: dict[str, _Kept] = {}
        self._known: Set[str] | None = None
        """Which of ``PATHS`` are known to work. They are one set for all devices: a rank may change its device, and
        others not."""
        self._has_tried = False
        self._one_device = False
        """Whether all ranks were on one device when they found out what works."""
        self.only: str | None = None
        """The device whose memory is taken, as ``cuda:0``; None if it may be any device's."""

    def check(self, b: Buffer, operation: str, argument: str) -> None:
        """Raise DeviceError if the buffer lies on another device than the one that is taken."""
        if self.only not in (None, b.device) and b.device != "cpu":
            expected = f"memory of the host or of {self.only}, the device of the group"
            raise DeviceError(operation, argument, expected, b.device)

    def bind(self, call: Call, algorithm: str | None, record: Record) -> Plan:
        """The plan of a call whose memory lies on a device. It says its route in the ``record``."""
        buffers = [b for b in (call.send, call.recv) if b is not None]
        self.check(buffers[0], call.operation, call.input if call.send is not None or call.in_place else "out")
        kept = self._kept_for(buffers[0])
        if all(b.plain for b in buffers):
            plan = self._plain(kept, algorithm, record, call.without_arrays())
        else:
            plan = without_gaps(kept.device, call, kept.packs, partial(self._plain, kept, algorithm, record))
        streams = {b.stream for b in buffers if b.stream is not None}
        return _around_streams(kept.device, streams, plan) if streams else plan

    def _plain(self, kept: _Kept, algorithm: str | None, record: Record, call: Call) -> Plan:
        """The plan of a call on plain memory."""
        device, named = kept.device, device_route(algorithm)[1]
        self._choose(named, call)  # a wrong algorithm is refused here and now
        if algorithm is None:
            return self._by_what_is_known(kept, call, record)
        route = partial(taken_route, algorithm, call.reduction is not None)
        wanted = route({*PATHS})
        plan = self._by(wanted, kept, call, named, record)
        if plan is None:
            return self._staged(kept, call, named, record)
        if wanted == route(set()):
            return plan

        def as_seen() -> Plan:
            if route(self._tried(device)) == wanted:
                return plan
            if self._fabric.rank == 0:
                text = f"{call.operation}: the MPI library does not take memory of {device.name} as '{wanted}' needs it"
                sites.warn(f"{text}: the call goes through host memory (see `mpicoll doctor`)")
            return self._staged(kept, call, named, record)

        return _AtFirst(as_seen)

    def _by_what_is_known(self, kept: _Kept, call: Call, record: Record) -> Plan:
        """The plan of a call that names no route. It starts no test job: what it needs is known already, or not.

        Ranks may find plans of different ages. So each run decides, by what is the same on all of them then."""
        otherwise = self._staged(kept, call, None, record)
        rules, chosen = self._fabric.rules, self._choose(None, call)
        is_free = preferred(call.operation, rules.preferred) is None and not rules.reproducible
        mpi_can = is_free and (call.reduction is None or call.reduction.mpi)
        native = None
        if chosen == NATIVE or (chosen == NODE and mpi_can):
            native = self._by(NATIVE, kept, call, None, record)
        is_long = call.nbytes(self._fabric.size) >= IPC_FROM
        on_one_device = None
        if is_free and is_long and self._may_open(call, kept.device):
            on_one_device = self._ipc(kept, call, otherwise, record)
        if (native is None and on_one_device is None) or not self._fabric.library:
            return otherwise
        reduces = call.reduction is not None

        def run() -> None:
            works = self._find_out(kept.device, tries=False) if self._known is None else self._known
            if native is not None and taken_route(NATIVE, reduces, works) == NATIVE:
                native()
            elif on_one_device is not None and self._one_device:
                on_one_device()
            else:
                otherwise()

        return run

    def _by(self, route: str, kept: _Kept, call: Call, named: str | None, record: Record) -> Plan | None:
        """The plan of this route; None, on all ranks alike, if it cannot serve the call."""
        fabric, device = self._fabric, kept.device
        if route == NATIVE and _by_mpi_alone(call):
            bound = _AtFirst(lambda: fabric.bind(_for_mpi(call, device), NATIVE, self._workspace, record))
            return _recorded(record, NATIVE, sequence(partial(_wait_for_caller, device), bound))
        if route == DEVICE and (call.reduction is None or device.reduces(call.reduction)):
            there = self._choose(named or between_memories(call.operation), call)
            plan = fabric.bind_on_device(call, there, device, kept.scratch)
            return _recorded(record, f"{DEVICE}:{algorithm_of(there)}", plan)
        if route == IPC and self._may_open(call, device):
            otherwise = self._staged(kept, call, named, record)
            return self._ipc(kept, call, otherwise, record)
        return None

    def _may_open(self, call: Call, device: Device) -> bool:
        """Whether ``ipc`` can serve the call, if the ranks can open each other's memory."""
        return self._fabric.one_node and ipc.serves(call, device)

    def _ipc(self, kept: _Kept, call: Call, otherwise: Plan, record: Record) -> Plan:
        return _recorded(record, IPC, ipc.IpcPlan(call, kept.peers, kept.scratch, otherwise))

    def _staged(self, kept: _Kept, call: Call, named: str | None, record: Record) -> Plan:
        fabric, choose = self._fabric, partial(self._choose, named)

        parts: list[Record] = []  # the last piece is shorter, and may go another way

        def on_host(part: Call) -> Plan:
            choice, of_part = choose(part), copy(record)
            parts.append(of_part)
            of_part.route = algorithm_of(choice)
            return self._on_host(named, part, choice, of_part)

        plan = staged.bind(call, fabric.rank, fabric.size, on_host, kept.ring, fabric.allgather)

        def note() -> None:
            record.route = f"{STAGED}:{'+'.join(dict.fromkeys(part.route for part in parts))}"

        note()
        return sequence(note, plan, note)

    def _tried(self, device: Device) -> Set[str]:
        """The paths that work with memory of this device, and of the other ranks' devices. Collective."""
        if not self._has_tried:
            self._find_out(device, tries=True)
            self._has_tried = True
        assert self._known is not None
        return self._known

    def _find_out(self, device: Device, tries: bool) -> Set[str]:
        """One rank of each node finds out, and a path works if it works on all nodes. Where ranks have different
        devices, these count together. What nobody has tried is tried now if ``tries``. Collective."""
        from mpicoll.probe.device_memory import known, probed  # it loads MPI, which ranks that are threads do not need

        fabric = self._fabric
        places = fabric.allgather((os.uname().nodename, device.identity))
        self._one_device = len({*places}) == 1
        nodes = [node for node, _ in places]
        first = nodes.index(nodes[fabric.rank]) == fabric.rank
        told = fabric.allgather((probed if tries else known)(device) if first else None)
        self._known = {path for path in PATHS if not any(paths is not None and paths[path] for paths in told)}
        return self._known

    def free(self) -> None:
        """Give up the memory of other processes, and the slots."""
        for kept in self._kept.values():
            kept.peers.free()
        self._kept.clear()

    def for_message(self, b: Buffer) -> Buffer | None:
        """A device's buffer, as MPI can send or receive it where it lies. None where this rank does not know that MPI
        takes messages of such memory. What the caller has queued is done when this returns."""
        if b.device == "cpu" or not b.plain or not self._fabric.library or not self._fabric.messages_by_library:
            return None
        kept = self._kept_for(b)
        if kept.sends is None:
            from mpicoll.probe.device_memory import known

            kept.sends = not known(kept.device)["messages"]
        if not kept.sends:
            return None
        settled(b)
        return replace(b, address=kept.device.for_mpi(b.address, b.nbytes))

    def _kept_for(self, b: Buffer) -> _Kept:
        device = device_named(b.device)
        if device.name not in self._kept:
            self._kept[device.name] = _Kept(device, self._fabric)
        return self._kept[device.name]


class _Kept:
    """What a communicator keeps for one device."""

    def __init__(self, device: Device, fabric: Fabric) -> None:
        self.device = device
        self.ring = staged.Ring(device, fabric.shares_arrays)
        self.scratch, self.packs = Scratch(device), Scratch(device)
        self.sends: bool | None = None
        """Whether this rank hands this memory to MPI in messages. Others may do otherwise."""
        self.peers = ipc.Peers(fabric.rank, fabric.size, device, fabric.allgather)


def _by_mpi_alone(call: Call) -> bool:
    """Whether the MPI library alone touches the memory. mpicoll's own arithmetic needs host memory. So does the copy in
    a reduce_scatter that is in place, as it may be on some ranks alone."""
    if call.reduction is None:
        return True
    return not (call.reduction.averages or call.reduction.op.factor is not None or call.collective.scatters)


def _recorded(record: Record, route: str, plan: Plan) -> Plan:
    """The plan, which says in the record by which route it goes. It says so in each run, because a call that was bound
    for another route may find that it must go through host memory."""
    record.route = route
    return sequence(partial(setattr, record, "route", route), plan)


def _around_streams(device: Device, streams: Collection[int], plan: Plan) -> Plan:
    """The plan, after the streams on which other libraries work. If one is not the current one, nobody but the host can
    let its work come after the result."""

    def run() -> None:
        elsewhere = [device.follow(stream) for stream in streams]
        plan()
        if any(elsewhere):
            _wait_for_caller(device)

    return run


def _wait_for_caller(device: Device) -> None:
    """Wait for what the caller has queued: an MPI knows nothing of streams."""
    device.current().record().wait()


def _for_mpi(call: Call, device: Device) -> Call:
    """The call at the addresses by which MPI reaches its memory."""
    send, recv = (
        None if b is None else replace(b, address=device.for_mpi(b.address, b.nbytes)) for b in (call.send, call.recv)
    )
    return replace(call, send=send, recv=recv)


class _AtFirst:
    """A plan that is bound at its first run, when all ranks are at the same call and can find something out."""

    def __init__(self, bind: Callable[[], Plan]) -> None:
        self._bind = bind
        self._plan: Plan | None = None

    def __call__(self) -> None:
        if self._plan is None:
            self._plan = self._bind()
        self._plan()
