"""From a checked call to its plan: the choice of an algorithm, and the route that its memory takes.

Arrays of the host with gaps or in another order are packed: a copy without gaps takes their place during the call.
Memory of a device takes one of the routes for devices.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choice import NODE, Choice
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.calls.record import Record
from mpicoll.calls.rules import Rules
from mpicoll.calls.select import Traits, choice_of, preferred, select
from mpicoll.communicator.engine.device_calls import DeviceCalls
from mpicoll.fabrics.fabric import Fabric
from mpicoll.machine import blocks

__all__ = ["Binding"]


class Binding:
    """Binds the calls of one communicator."""

    def __init__(self, fabric: Fabric, rules: Rules) -> None:
        self._fabric, self._workspace = fabric, Workspace()
        self.traits = Traits(fabric.nodes, fabric.library, fabric.kernel, rules)
        """What the choice of algorithms depends on."""
        self.devices = DeviceCalls(fabric, self._choose, self._on_host, self._workspace)

    def bind(self, call: Call, algorithm: str | None, record: Record) -> tuple[Plan, bool]:
        """The plan of the call, and whether it may serve again: one that packs an array is bound afresh each
        time. The ``record`` gets the name of the algorithm or of a device's route."""
        buffers = [b for b in (call.send, call.recv) if b is not None]
        plain = all(b.plain for b in buffers)
        if any(b.device != "cpu" for b in buffers):
            plan = self.devices.bind(call, algorithm, record)
            call = call.without_arrays() if plain else call
        else:
            chosen = self._choose(algorithm, call, record)  # a wrong algorithm is refused here and now
            if not plain:
                return partial(self._packed, call, algorithm, record), False
            call = call.without_arrays()
            plan = self._on_host(algorithm, call, chosen, record)
        return plan, plain

    def _on_host(self, algorithm: str | None, call: Call, chosen: Choice, record: Record) -> Plan:
        """The plan of a call on host memory. Unless somebody has named an algorithm, the kernel serves it where arrays
        lie in memory that the ranks share."""
        plan = self._fabric.bind(call, chosen, self._workspace, record)
        named = algorithm is not None or preferred(call.operation, self._fabric.rules.preferred) is not None
        return plan if named or chosen == NODE else self._fabric.in_shared_memory(call, plan, record)

    def _choose(self, algorithm: str | None, call: Call, record: Record | None = None) -> Choice:
        """How the call is carried out. The ``record`` gets its name."""
        size = self._fabric.size
        name = select(call.operation, call.reduction, call.nbytes(size), self.traits, call.root, algorithm)
        if record is not None:
            record.route = name
        return choice_of(name, call, self._fabric.rank, self._fabric.nodes)

    def _packed(self, call: Call, algorithm: str | None, record: Record) -> None:
        """Make the call on copies of what has gaps. They are in shared memory if this process has some."""

        def packed(b: Buffer | None) -> Buffer | None:
            if b is None or b.plain:
                return b
            return b.on_host(blocks.allocate(b.nbytes) if self._fabric.shares_arrays and blocks.exist() else None)

        send, recv = packed(call.send), packed(call.recv)
        self.bind(replace(call, send=send, recv=recv), algorithm, record)[0]()
        out = None if call.only_read_at(self._fabric.rank) else call.recv
        if recv is not None and out is not None and out is not recv:
            out.assign(recv)
