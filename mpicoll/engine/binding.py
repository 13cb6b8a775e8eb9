"""From a checked call to its plan: the choice of an algorithm, and the route that its memory takes.

Arrays of the host with gaps or in another order are packed: a copy without gaps takes their place during the call.
Memory of a device takes one of the routes for devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mpicoll.calls.call import Call
from mpicoll.calls.choice import Choice, Cico, Native
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.calls.record import Record
from mpicoll.calls.rules import Rules
from mpicoll.calls.select import Traits, choice_of, select
from mpicoll.engine.device_calls import DeviceCalls
from mpicoll.fabrics.fabric import Fabric

__all__ = ["Binding"]


class Binding:
    """Binds the calls of one communicator."""

    def __init__(self, fabric: Fabric, rules: Rules) -> None:
        self._fabric, self._workspace = fabric, Workspace()
        self._traits = Traits(fabric.size, fabric.one_node, fabric.library, fabric.shares, fabric.meets, rules)
        self._choose = partial(_choose, fabric, self._traits)
        self.devices = DeviceCalls(fabric, self._choose, self._workspace)

    @property
    def traits(self) -> Traits:
        """What the choice of algorithms depends on. ``shares`` may change at the first long call, which finds out
        whether the ranks can share memory."""
        return replace(self._traits, shares=self._fabric.shares, meets=self._fabric.meets)

    def bind(self, call: Call, algorithm: str | None, record: Record) -> tuple[Plan, bool]:
        """The plan of the call, and whether it may serve again: one that packs an array is bound afresh each
        time. The ``record`` gets the name of the algorithm or of a device's route."""
        plan, lasts = self._bind(call, algorithm, record)
        if algorithm is None and not self._fabric.rules.preferred:
            call = call.without_arrays() if lasts else call
            plan = self._fabric.where_it_lies(call, plan, record, self._workspace)
        return plan, lasts

    def _bind(self, call: Call, algorithm: str | None, record: Record) -> tuple[Plan, bool]:
        buffers = [b for b in (call.send, call.recv) if b is not None]
        if any(b.device != "cpu" for b in buffers):
            return self.devices.bind(call, algorithm, record), all(b.plain for b in buffers)
        lasts = all(self._fabric.usable(b) for b in buffers)
        choose = partial(self._choose, algorithm, record=record)
        chosen = choose(call)  # a wrong algorithm is refused here and now
        if self._fabric.settled or not (self._fabric.is_long(call) or chosen == Cico()):
            return self._bound(call, chosen), lasts
        return _Later(self._fabric, call.without_arrays() if lasts else call, choose, self._bound), lasts

    def _bound(self, call: Call, chosen: Choice) -> Plan:
        if all(b is None or b.plain for b in (call.send, call.recv)):
            return self._fabric.bind(call, chosen, self._workspace)
        return partial(self._packed, call, chosen)

    def _packed(self, call: Call, chosen: Choice) -> None:
        fabric = self._fabric
        send, recv = (b if b is None or b.plain else b.on_host() for b in (call.send, call.recv))
        plan = fabric.bind(replace(call, send=send, recv=recv), chosen, self._workspace)
        plan()
        if recv is not None and call.recv is not None and recv is not call.recv and not call.only_read_at(fabric.rank):
            call.recv.assign(recv)


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
            if chosen != Native() and not fabric.settled:
                fabric.settle()
                chosen = self._choose(self._call)
            self._plan, self._shares = self._bound(self._call, chosen), fabric.shares
        self._plan()


def _choose(fabric: Fabric, traits: Traits, algorithm: str | None, call: Call, record: Record | None = None) -> Choice:
    """How the call is carried out, from what is known of shared memory now. That matters to a long call alone. The
    ``record`` gets its name."""
    shares = fabric.is_long(call) and fabric.shares
    meets = fabric.meets
    now = traits if (traits.shares, traits.meets) == (shares, meets) else replace(traits, shares=shares, meets=meets)
    name = select(call.operation, call.reduction, call.nbytes(fabric.size), now, call.root, algorithm)
    if record is not None:
        record.route = name
    return choice_of(name, call, fabric.rank, fabric.size)
