"""Collectives of arrays: checked, bound to a plan that serves again, and carried out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mpicoll.arrays.buffers import exported
from mpicoll.arrays.dtypes import Op, name_of
from mpicoll.arrays.protocols import ArrayLike
from mpicoll.calls.call import Call, checked, record_of
from mpicoll.calls.choose import choose
from mpicoll.calls.plan import CachedPlan, Plan
from mpicoll.communicator.engine.base import Base, refused
from mpicoll.communicator.engine.packing import around, reads_output
from mpicoll.supervise import sites
from mpicoll.supervise.record import Record

if TYPE_CHECKING:
    from mpicoll.communicator.engine.base import OpLike
    from mpicoll.node.kernel import BegunCall, PackedList


T = TypeVar("T")


class Collectives(Base):
    """How an engine makes collectives."""

    def plan(
        self,
        operation: str,
        x: ArrayLike | None = None,
        out: ArrayLike | None = None,
        op: OpLike | None = None,
        root: int = 0,
        algorithm: str | None = None,
        sendcounts: Sequence[int] | None = None,
        recvcounts: Sequence[int] | None = None,
    ) -> CachedPlan:
        """Check a collective call and bind it to its arrays. :meth:`execute` makes it happen, on any thread.

        ``operation`` is the name of a method, and the other arguments are those of the method. ``sendcounts`` are what
        scatterv and reduce_scatterv call ``counts``; ``recvcounts`` are what gatherv and allgatherv call so. Unlike the
        method, an allreduce, reduce, scan or exscan without ``out`` works in place, and all others need ``out``.

        A plan holds the addresses of the arrays, not the arrays. Keep them until it has been carried out. Raises the
        errors of the method.
        """
        if op is not None and type(op) is not str and type(op) is not Op:
            op = name_of(op, operation)
        at = self.at(operation, x, out, op, root, algorithm, sendcounts, recvcounts)
        plan = self.plans.find(at)
        if plan is None:
            self.check_open(operation)
            call = checked(operation, self.rank, self.size, x, out, op, root, sendcounts, recvcounts)
            record = record_of(call, algorithm, self.size)
            steps, lasts = self._steps(call, algorithm, record)
            plan = CachedPlan(steps, record)
            if at is None:
                plan.kept = call  # an array without a key may be memory that was handed out for this call alone
            elif lasts:
                self.plans.keep(at, plan)
        return plan

    def _steps(self, call: Call, algorithm: str | None, record: Record) -> tuple[list[Plan], bool]:
        """What a call does, one step after another, and whether that may serve again: what packs an array of a device
        is bound afresh each time. An array of the host with gaps is copied before and after the call, if the fabric
        cannot use it where it lies."""
        buffers = [b for b in (call.send, call.recv) if b is not None]
        plain = all(b.plain for b in buffers)
        on_device = any(b.device != "cpu" for b in buffers)
        before: list[Plan] = []
        after: list[Plan] = []
        if on_device:
            route = [self.devices.bind(call, algorithm, record)]
        else:
            choice = choose(call, algorithm, self.info)  # a wrong algorithm is refused here and now
            if not plain and (self.checks or not self.fabric.takes(call, choice)):
                writes = not call.only_read_at(self.rank)
                send, recv, before, after = around(
                    call.send, call.recv, reads_output(call, self.rank), writes, self.copies
                )
                call = replace(call, send=send, recv=recv)
            record.route = choice.name
            route = self.fabric.bind(call.without_arrays(), choice, record)
        checks = [step for check in self.checks for step in check(call, record)]
        return [*before, *checks, *route, *after], plain or not on_device

    def at(
        self,
        operation: str,
        x: Any,
        out: Any,
        op: Any,
        root: Any,
        algorithm: Any,
        sendcounts: Sequence[int] | None,
        recvcounts: Sequence[int] | None,
    ) -> Hashable | None:
        """What a call is found by again. None if it must be bound afresh."""
        try:
            here = None if x is None else self.key(x)
            there = None if out is None else self.key(out)
            if (here is None and x is not None) or (there is None and out is not None) or type(root) is not int:
                return None
            at: tuple[Hashable, ...] = (operation, here, there, op, root, algorithm)
            if sendcounts is not None or recvcounts is not None:  # what has a key has a shape
                at = (*at, _fixed(sendcounts), _fixed(recvcounts), np.shape(x), np.shape(out))
            hash(at)
            return at
        except (TypeError, ValueError, BufferError):
            return None  # something has no hash, or no memory: if it is wrong, binding the call says what is

    def execute(self, plan: CachedPlan, operation: str) -> None:
        """Make the call that was bound by :meth:`plan`. ``operation`` is its name in errors.

        What the MPI library reports becomes a MessageError. A call that ends by an exception closes the communicator:
        other ranks may be at other steps of it, or at the next call. That includes an exception of a signal's handler.
        Let handlers set a flag, and raise after the call.
        """
        if self.closed:
            self.check_open(operation)
        recorder = self.recorder
        recorder.begin(plan.record)
        if sites.here.site is not None:
            recorder.was_handed_in(sites.here.site, sites.here.handed_in)
        try:
            plan.run()
        except BaseException as e:
            self.break_off(plan, operation, e)
            raise
        recorder.under_way = False

    def make(
        self,
        operation: str,
        x: Any,
        out: Any,
        op: OpLike | None,
        root: int,
        algorithm: str | None,
        sendcounts: Sequence[int] | None = None,
        recvcounts: Sequence[int] | None = None,
    ) -> None:
        """Make a call, by the kernel if it knows a plan. The arguments are those of :meth:`plan`."""
        arguments = operation, x, out, op, root, algorithm, sendcounts, recvcounts
        if self.calls is None or not self.calls.run(*arguments):
            self.run_new(*arguments)

    def finish_call(self, begun: BegunCall, operation: str) -> None:
        """Wait for a call that was begun, as :meth:`execute` does."""
        try:
            begun.wait()
        except BaseException as e:
            self.break_off(begun, operation, e)
            raise
        self.recorder.under_way = False

    def keep(
        self, plan: CachedPlan, call: Sequence[Any], packed: tuple[PackedList | None, PackedList | None] = (None, None)
    ) -> None:
        """From now on, the kernel makes a call by the plan. The call is the arguments of :meth:`plan`. ``packed`` is
        where the tensors of ``x`` travel, and those of ``out``, if they are lists."""
        if self.calls is not None and plan.kept is None:
            self.calls.keep(*call, *[None] * (8 - len(call)), plan, *packed)
            if self.closed:  # by another thread meanwhile
                self.calls.forget(False)

    def run_new(
        self,
        operation: str,
        x: Any,
        out: Any,
        op: OpLike | None,
        root: int,
        algorithm: str | None,
        sendcounts: Sequence[int] | None = None,
        recvcounts: Sequence[int] | None = None,
    ) -> None:
        """Make a call that the kernel does not know."""
        arguments = operation, exported(x), exported(out), op, root, algorithm, sendcounts, recvcounts
        plan = self.plan(*arguments)
        self.keep(plan, arguments)
        self.execute(plan, operation)

    def together(self, record: Record, make: Callable[..., T], *arguments: Any) -> T:
        """Make a collective that has no plan: it is recorded, and all ranks make it, if they agree on calls."""
        if self.closed:
            self.check_open(record.operation)
        recorder = self.recorder
        recorder.begin(record)
        try:
            if self.agreement is not None:
                self.agreement.agree(record.operation, record)
            made = make(*arguments)
        except BaseException as e:
            if refused(e):
                recorder.under_way = False  # it counts, because other ranks may have made it
            else:
                self.break_off(self.fabric, record.operation, e)
            raise
        recorder.under_way = False
        return made


def _fixed(counts: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if counts is None else tuple(counts)
