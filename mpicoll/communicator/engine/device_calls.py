"""Calls on the memory of a device. ``calls.choose`` chooses the route. Here is what that depends on, and who is asked
for each route."""

from __future__ import annotations

import os
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choose import DEVICE, PATHS, STAGED, Choice, CommInfo, DeviceInfo, choose, device_route
from mpicoll.calls.plan import Plan, sequence
from mpicoll.communicator.engine.packing import settled
from mpicoll.devices.cuda import device_named
from mpicoll.devices.device import Device
from mpicoll.errors import DeviceError
from mpicoll.fabrics.fabric import Fabric
from mpicoll.fabrics.routes.devices import ipc, staged
from mpicoll.fabrics.routes.devices.scratch import Scratch, without_gaps
from mpicoll.supervise import sites
from mpicoll.supervise.record import Record


@dataclass(frozen=True)
class _Found:
    """What the ranks have found out about their devices, and whether they have tried what was not known."""

    works: frozenset[str]
    one_device: bool
    tried: bool


class DeviceCalls:
    """What one communicator keeps for its calls on device memory."""

    def __init__(self, fabric: Fabric, info: CommInfo) -> None:
        self._fabric, self._info = fabric, info
        self._kept: dict[str, _Kept] = {}
        self._found: _Found | None = None
        self.only: str | None = None  # the device whose memory is taken, as ``cuda:0``; None if it may be any device's

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
        """The plan of a call on plain memory. If it depends on what the ranks find out about their devices, they do so
        when they first make such a call."""
        reduces = call.reduction is None or kept.device.reduces(call.reduction)
        best, worst = DeviceInfo(reduces, frozenset(PATHS), True), DeviceInfo(reduces)
        wanted, otherwise = (choose(call, algorithm, self._info, info) for info in (best, worst))
        first = wanted if wanted.route == DEVICE else otherwise
        plan = self._by(first, kept, call, algorithm, record)  # it may be refused here and now
        if wanted == otherwise:
            return plan
        bound, last = {first: plan}, None

        def run() -> None:
            nonlocal last, plan
            # Ranks may have bound their plans at different times. So each run goes by what is the same on all of them.
            found = self._find_out(kept.device, tries=algorithm is not None)
            if found is not last:
                last, info = found, DeviceInfo(reduces, found.works, found.one_device)
                choice = choose(call, algorithm, self._info, info)
                if algorithm is not None and choice != wanted and self._fabric.rank == 0:
                    text = f"the MPI library does not take memory of {kept.device.name} as '{wanted.route}' needs it"
                    sites.warn(f"{call.operation}: {text}: the call goes through host memory (see `mpicoll doctor`)")
                if choice not in bound:
                    bound[choice] = self._by(choice, kept, call, algorithm, record)
                plan = bound[choice]
            plan()

        return run

    def _by(self, choice: Choice, kept: _Kept, call: Call, algorithm: str | None, record: Record) -> Plan:
        """The plan of this choice. It says its route in the record each time, because a call that was bound for another
        route may find that it must go through host memory."""
        fabric, device = self._fabric, kept.device
        note = partial(setattr, record, "route", choice.name)
        match choice.route:
            case "native":
                _wait_for_caller(device)  # now, too, because the device may look at the memory that MPI gets
                send, recv = (
                    b and replace(b, address=device.for_mpi(b.address, b.nbytes)) for b in (call.send, call.recv)
                )
                steps = fabric.bind(replace(call, send=send, recv=recv), choice, record)
                return sequence(note, partial(_wait_for_caller, device), *steps)
            case "device":
                return sequence(note, fabric.bind_on_device(call, choice, device, kept.scratch))
            case "ipc":
                otherwise = self._staged(kept, call, device_route(algorithm)[1], record)
                return sequence(note, ipc.IpcPlan(call, kept.peers, otherwise))
        return self._staged(kept, call, choice.schedule, record)

    def _staged(self, kept: _Kept, call: Call, named: str | None, record: Record) -> Plan:
        fabric, info = self._fabric, self._info
        parts: list[Record] = []  # the last piece is shorter, and may go another way

        def on_host(part: Call) -> Plan:
            choice, of_part = choose(part, named, info), copy(record)
            parts.append(of_part)
            of_part.route = choice.name
            return sequence(*fabric.bind(part.without_arrays(), choice, of_part))

        plan = staged.bind(call, fabric.rank, fabric.size, on_host, kept.ring, fabric.allgather)

        def note() -> None:
            record.route = f"{STAGED}:{'+'.join(dict.fromkeys(part.route for part in parts))}"

        note()
        return sequence(note, plan, note)

    def _find_out(self, device: Device, tries: bool) -> _Found:
        """What all ranks know of their devices. One rank of each node finds out, and a path works if it works on all
        nodes. Where ranks have different devices, these count together: a rank may change its device, and others not.
        What nobody has tried is tried now if ``tries``. Collective where it is not known yet."""
        if self._found is not None and (self._found.tried or not tries):
            return self._found
        from mpicoll.probe.device_memory import probed  # it loads MPI, which ranks that are threads do not need

        fabric = self._fabric
        places = fabric.allgather((os.uname().nodename, device.identity))
        nodes = [node for node, _ in places]
        first = nodes.index(nodes[fabric.rank]) == fabric.rank
        told = fabric.allgather(probed(device, tries) if first else None)
        works = frozenset(path for path in PATHS if not any(paths is not None and paths[path] for paths in told))
        self._found = _Found(works, len({*places}) == 1, tries)
        return self._found

    def free(self) -> None:
        for kept in self._kept.values():
            kept.peers.free()
        self._kept.clear()

    def for_message(self, b: Buffer) -> Buffer | None:
        """A device's buffer, as MPI can send or receive it where it lies. None where this rank does not know that MPI
        takes messages of such memory. What the caller has queued is done when this returns."""
        if b.device == "cpu" or not b.plain or not self._fabric.info.library or not self._fabric.messages.by_library:
            return None
        kept = self._kept_for(b)
        if kept.sends is None:
            from mpicoll.probe.device_memory import probed

            kept.sends = not probed(kept.device, tries=False)["messages"]
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
    def __init__(self, device: Device, fabric: Fabric) -> None:
        self.device = device
        self.ring = staged.Ring(device, fabric.info.shares_memory)
        self.scratch, self.packs = Scratch(device), Scratch(device)
        self.sends: bool | None = None
        """Whether this rank hands this memory to MPI in messages. Others may do otherwise."""
        self.peers = ipc.Peers(fabric.rank, fabric.size, device, fabric.allgather)


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
