"""From a checked call to its plan: the choice of an algorithm, and the route that its memory takes.

Arrays of the host with gaps or in another order are packed: a copy without gaps takes their place during the call.
``packed`` gives the call on these copies. Memory of a device takes one of the routes for devices.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choice import NODE, Choice
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.calls.rules import Rules
from mpicoll.calls.select import Traits, choice_of, preferred, select
from mpicoll.communicator.engine.device_calls import DeviceCalls
from mpicoll.communicator.engine.packing import Around, around, reads_output
from mpicoll.fabrics.fabric import Fabric
from mpicoll.machine import blocks
from mpicoll.supervise.record import Record


class Binding:
    """Binds the calls of one communicator."""

    def __init__(self, fabric: Fabric, rules: Rules) -> None:
        self._fabric, self._workspace = fabric, Workspace()
        self._copies, self._shared_copies = Workspace(), Workspace(shared=True)
        self.traits = Traits(fabric.nodes, fabric.library, fabric.kernel, rules)
        """What the choice of algorithms depends on."""
        # No methods of this object: it is given back at once when its communicator is, without Python's collector.
        self._choose = partial(_choose, fabric, self.traits)
        self._on_host = partial(_on_host, fabric, self._workspace)
        self.devices = DeviceCalls(fabric, self._choose, self._on_host, self._workspace)

    def around(self, send: Buffer | None, recv: Buffer | None, reads: bool, writes: bool) -> Around:
        """What a call is made on that needs memory of the host without gaps: copies are in shared memory if this
        process has some. ``reads`` and ``writes`` say what the call does with ``recv``."""
        in_shared = self._fabric.shares_arrays and blocks.exist()
        return around(send, recv, reads, writes, self._shared_copies if in_shared else self._copies)

    def packed(self, call: Call) -> tuple[Call, list[Plan], list[Plan]]:
        """The call on plain memory, if it is on memory of the host, and what is done before it and after it."""
        buffers = [b for b in (call.send, call.recv) if b is not None]
        if all(b.plain for b in buffers) or any(b.device != "cpu" for b in buffers):
            return call, [], []
        rank = self._fabric.rank
        made = self.around(call.send, call.recv, reads_output(call, rank), not call.only_read_at(rank))
        send, recv, before, after = made
        return replace(call, send=send, recv=recv), before, after

    def bind(self, call: Call, algorithm: str | None, record: Record) -> tuple[Plan, bool]:
        """The plan of a call that is ``packed``, and whether it may serve again: one that packs an array of a device is
        bound afresh each time. The ``record`` gets the name of the algorithm or of a device's route."""
        buffers = [b for b in (call.send, call.recv) if b is not None]
        if any(b.device != "cpu" for b in buffers):
            return self.devices.bind(call, algorithm, record), all(b.plain for b in buffers)
        chosen = self._choose(algorithm, call, record)  # a wrong algorithm is refused here and now
        return self._on_host(algorithm, call.without_arrays(), chosen, record), True


def _on_host(
    fabric: Fabric, workspace: Workspace, algorithm: str | None, call: Call, chosen: Choice, record: Record
) -> Plan:
    """The plan of a call on host memory. Unless somebody has named an algorithm, the kernel serves it where arrays lie
    in memory that the ranks share."""
    plan = fabric.bind(call, chosen, workspace, record)
    named = algorithm is not None or preferred(call.operation, fabric.rules.preferred) is not None
    return plan if named or chosen == NODE else fabric.in_shared_memory(call, plan, record)


def _choose(fabric: Fabric, traits: Traits, algorithm: str | None, call: Call, record: Record | None = None) -> Choice:
    """How the call is carried out. The ``record`` gets its name."""
    name = select(call.operation, call.reduction, call.nbytes(fabric.size), traits, call.root, algorithm)
    if record is not None:
        record.route = name
    return choice_of(name, call, fabric.rank, fabric.nodes)
