"""From a checked call to its plan: the choice of an algorithm, and the route that its memory takes.

Arrays of the host with gaps or in another order are packed: a copy without gaps takes their place during the call.
Memory of a device takes one of the routes for devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choice import CICO, NATIVE, Choice
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
        self._traits = Traits(fabric.nodes, fabric.library, fabric.shares, fabric.meets, rules)
        self._choose = partial(_choose, fabric, self._traits)
        self._where_it_lies = partial(_where_it_lies, fabric, self._workspace)
        self.devices = DeviceCalls(fabric, self._choose, self._where_it_lies, self._workspace)

    @property
    def traits(self) -> Traits:
        """What the choice of algorithms depends on. ``shares`` may change at the first long call, which finds out
        whether the ranks can share memory."""
        return replace(self._traits, shares=self._fabric.shares, meets=self._fabric.meets)

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
            plan = self._bound(call, chosen, partial(self._choose, algorithm, record=record))
            plan = self._where_it_lies(algorithm, call, plan, record)
        return plan, plain

    def _bound(self, call: Call, chosen: Choice, choose: Callable[[Call], Choice]) -> Plan:
        fabric, bound = self._fabric, partial(self._fabric.bind, workspace=self._workspace)
        if fabric.settled or not (fabric.is_long(call) or chosen == CICO):
            return bound(call, chosen)
        return _Later(fabric, call, choose, bound)

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


class _Later:
    """A long call that is handed in before it is known whether the ranks have memory to share.

    When it is run, all ranks are at the same call. So they ask for the memory together, or all know that there is none,
    and make the same choice. A plan that was bound before they learned that is bound anew."""

    def __init__(
        self, fabric: Fabric, call: Call, choose: Callable[[Call], Choice], bound: Callable[[Call, Choice], Plan]
    ) -> None:
        self._fabric, self._call, self._choose, self._bound = fabric, call, choose, bound
        self._plan: Plan | None = None
        self._shares = False

    def __call__(self) -> None:
        fabric = self._fabric
        if self._plan is None or self._shares != fabric.shares:
            chosen = self._choose(self._call)
            if chosen != NATIVE and not fabric.settled:
                fabric.settle()
                chosen = self._choose(self._call)
            self._plan, self._shares = self._bound(self._call, chosen), fabric.shares
        self._plan()


def _where_it_lies(
    fabric: Fabric, workspace: Workspace, algorithm: str | None, call: Call, plan: Plan, record: Record
) -> Plan:
    """The plan of a call on host memory. If nobody has named an algorithm, it finds out whether the ranks' arrays lie
    in memory that they share."""
    if algorithm is not None or preferred(call.operation, fabric.rules.preferred) is not None:
        return plan
    return fabric.where_it_lies(call, plan, record, workspace)


def _choose(fabric: Fabric, traits: Traits, algorithm: str | None, call: Call, record: Record | None = None) -> Choice:
    """How the call is carried out, from what is known of shared memory now. That matters to a long call alone. The
    ``record`` gets its name."""
    shares = fabric.is_long(call) and fabric.shares
    meets = fabric.meets
    now = traits if (traits.shares, traits.meets) == (shares, meets) else replace(traits, shares=shares, meets=meets)
    name = select(call.operation, call.reduction, call.nbytes(fabric.size), now, call.root, algorithm)
    if record is not None:
        record.route = name
    return choice_of(name, call, fabric.rank, fabric.nodes)
