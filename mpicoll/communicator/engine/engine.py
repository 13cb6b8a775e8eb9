"""The engine of a communicator. Collectives of arrays are checked, bound to a plan that serves again, and carried out.
Those that do not block are the kernel's, MPI's own, or those of a thread of this rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mpicoll.algorithms.collectives import METHODS
from mpicoll.arrays.buffers import Buffer, exported
from mpicoll.arrays.dtypes import Op, name_of
from mpicoll.arrays.protocols import ArrayLike
from mpicoll.calls import results
from mpicoll.calls.call import Call, checked, record_of
from mpicoll.calls.choose import NATIVE, Choice, choose
from mpicoll.calls.plan import CachedPlan, Plan
from mpicoll.communicator.engine.base import refused
from mpicoll.communicator.engine.message import Message, Startable
from mpicoll.communicator.engine.message_calls import MessageCalls
from mpicoll.communicator.engine.packing import Packed, ends_of, settled, without_gaps
from mpicoll.communicator.engine.progress import OnThread, ProgressThread
from mpicoll.communicator.engine.requests import Request
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.fabric import Nobody, Transfer
from mpicoll.node.loaded import kernel
from mpicoll.supervise import sites
from mpicoll.supervise.ending import limited
from mpicoll.supervise.record import Pending, Record

if TYPE_CHECKING:
    from mpicoll.communicator.engine.base import OpLike
    from mpicoll.node.kernel import BegunCall, PackedList

T = TypeVar("T")


class Engine(MessageCalls):
    """Makes collectives and messages over a fabric, for a Communicator's methods, torch's groups and other threads."""

    _progress: ProgressThread | None = None  # carries out collectives that do not block and that MPI has no call for
    _twin: Engine | None = None
    """The engine through which it does so, over a communicator of its own: the program may make calls meanwhile."""

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
        errors of the method."""
        if op is not None and type(op) is not str and type(op) is not Op:
            op = name_of(op, operation)
        at = self.at(operation, x, out, op, root, algorithm, sendcounts, recvcounts)
        plan = self.plans.get(at)
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
            if not plain and not self.fabric.takes(call, choice):
                (send, recv), before, after = without_gaps(ends_of(call, self.rank), self.copies)
                call = replace(call, send=send, recv=recv)
            record.route = choice.name
            route = self.fabric.bind(call.without_arrays(), choice, record)
        agrees = [] if self.agreement is None else self.agreement.before(call, record)
        return [*before, *agrees, *route, *after], plain or not on_device

    def at(self, operation: str, x: Any, out: Any, *how: Any) -> Hashable | None:
        """What a call is found by again. None if it must be bound afresh. The arguments are those of :meth:`plan`."""
        op, root, algorithm, sendcounts, recvcounts = how
        try:
            here = None if x is None else self.key(x)
            there = None if out is None else self.key(out)
            if (here is None and x is not None) or (there is None and out is not None) or type(root) is not int:
                return None
            at: tuple[Hashable, ...] = (operation, here, there, op, root, algorithm)
            if sendcounts is not None or recvcounts is not None:  # what has a key has a shape
                fixed = (None if counts is None else tuple(counts) for counts in (sendcounts, recvcounts))
                at = (*at, *fixed, np.shape(x), np.shape(out))
            hash(at)
            return at
        except (TypeError, ValueError, BufferError):
            return None  # something has no hash, or no memory: if it is wrong, binding the call says what is

    def execute(self, plan: CachedPlan, operation: str) -> None:
        """Make the call that was bound by :meth:`plan`. ``operation`` is its name in errors.

        What the MPI library reports becomes a MessageError. A call that ends by an exception, also by one of a signal's
        handler, closes the communicator: other ranks may be at other steps of it, or at the next call."""
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

    def make(self, *call: Any) -> None:
        """Make a call, by the kernel if it knows a plan. The call is all arguments of :meth:`plan`."""
        if self.calls is None or not self.calls.run(*call):
            self._make_new(*call)

    def _make_new(self, operation: str, x: Any, out: Any, *how: Any) -> None:
        """Make a call that the kernel does not know."""
        call = operation, exported(x), exported(out), *how
        plan = self.plan(*call)
        self.keep(plan, call)
        self.execute(plan, operation)

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

    # -- collectives that do not block --------------------------------------------------------------------------------

    def begun(
        self,
        operation: str,
        x: Any,
        out: Any = None,
        op: OpLike | None = None,
        root: int = 0,
        algorithm: str | None = None,
        sendcounts: Sequence[int] | None = None,
        recvcounts: Sequence[int] | None = None,
    ) -> Request:
        name = f"i{operation}"
        self.check_open(name)
        if op is not None and type(op) is not str and type(op) is not Op:
            op = name_of(op, name)
        table, _ = METHODS[operation]
        if root != self.rank and table.root == "gets":
            out = None  # it is not used there, and the kernel finds the call again without it
        try:
            out, result, in_kind = results.ends(operation, x, out, self.rank, self.size, root, sendcounts, recvcounts)
            here, there = exported(x), None if out is x and table.elementwise else exported(out)
            arguments = here, there, op, root, algorithm, sendcounts, recvcounts
            if self.calls is not None and not in_kind:
                request: Request | None = self.calls.begin(name, *arguments, result)
                if request is not None:
                    return request
            known = self._startable(operation, *arguments)
        except ArgumentError as e:
            raise type(e)(name, e.argument, e.expected, e.given) from None
        if (message := known.message) is None:
            number = self.recorder.begun

            def run(engine: Engine) -> None:
                try:
                    engine.execute(engine.plan(operation, *arguments), name)
                except BaseException:  # of a signal's handler, too, where the program's thread carries it out
                    if engine is not self and engine.closed and not self.closed:  # nor are these ranks together now
                        self.lost = engine.lost
                        self.close(engine.closed, goes_on=True)
                    raise
                self.recorder.unsure.discard(number)
                settled(*known.on_device)

            settled(*known.on_device)  # the thread has another queue
            message = _message(known.pending, known.record, self._on_thread(run, known.record.nbytes))
        elif (
            self.calls is not None
            and kernel is not None
            and not in_kind
            and isinstance(plan := message.transfer, kernel.Plan)
        ):
            self.calls.keep_begun(name, *arguments, message, known.record, plan, known.pending)

        recorder, finish = self.recorder, partial(results.in_kind, x, result) if in_kind else None
        recorder.begin(known.record)  # in the order of the program, as every collective
        if self.agreement is not None and isinstance(message.transfer, OnThread):
            recorder.unsure.add(recorder.begun - 1)
        try:
            return self.started(message, (x, out, here, there), finish, result)
        finally:
            recorder.under_way = False

    def _startable(
        self, operation: str, x: Any, out: Any, op: Any, root: Any, algorithm: Any, *counts: Any
    ) -> Startable:
        """The call, checked, or found again."""
        at = self.at(f"i{operation}", x, out, op, root, algorithm, *counts)
        found = self.startable.get(at)
        if found is not None:
            return found
        call = checked(operation, self.rank, self.size, x, out, op, root, *counts)
        choice = choose(call, algorithm, self.info)
        name = f"i{operation}"
        record = record_of(call, algorithm, self.size, name)
        missing = f"{record.description} is not complete"
        pending = Pending(name, record.description, record.elements, record.dtype, missing)
        transfer = self._begins(call, algorithm, choice, record)
        message = None if transfer is None else _message(pending, record, transfer)
        on_device = [b for b in (call.send, call.recv) if b is not None and b.device != "cpu"]
        known = Startable(record, pending, message, on_device)
        if at is not None and not on_device:
            self.startable.keep(at, known)
        return known

    def _begins(self, call: Call, algorithm: str | None, choice: Choice, record: Record) -> Transfer | None:
        """The call as one that needs no thread. Copies take the place of memory that cannot be used as it lies: they
        are filled when the call begins, and written back at its end."""
        if self.agreement is not None:
            return None
        free = algorithm in (None, NATIVE) and not self.info.in_rank_order(call.reduction)
        by_library = free and call.collective.mpi
        begin = partial(self.fabric.begin, choice=choice, record=record, by_library=by_library)
        if self.fabric.takes(call, choice):
            return begin(call.without_arrays())
        bare = replace(call, send=None, recv=None)

        def bind(sent: Buffer | None, came: Buffer | None) -> Transfer | None:
            return begin(replace(bare, send=sent, recv=came))

        if bind(*(b and b.part(0, b.count) for b in (call.send, call.recv))) is None:
            return None
        return Packed(bind, *ends_of(call, self.rank), message=False)

    def _on_thread(self, run: Callable[[Engine], None], nbytes: int) -> Transfer:
        """The call as one that a thread carries out."""
        if not self.fabric.any_thread:
            run(self)
            return Nobody(self.fabric.nobody, self.fabric.any_tag, 0)
        if self._progress is None:
            make, settings, limit = self.fabric.beside(), self.settings, self.limit

            def make_twin() -> Engine:
                with limited("making a communicator for the calls that do not block", limit):
                    twin = Engine(make(), *settings)
                if twin.watched is not None:
                    twin.watched.on_tape = False  # this communicator's are noted
                    twin.watched.note_on(None)
                return twin

            self._make_twin, self._progress = make_twin, ProgressThread()

        def run_there() -> None:
            self._twin = self._twin or self._make_twin()
            run(self._twin)

        return OnThread(self._progress, run_there, nbytes)

    def free(self) -> None:
        if not self.closed:
            if self._progress is not None:
                self._progress.finish()
            if self._twin is not None:
                self._twin.free()
            self.under_way.complete()
            self.devices.free()
        super().free()


def _message(pending: Pending, record: Record, transfer: Transfer) -> Message:
    return Message(pending, transfer, False, True, 2 * record.nbytes, True)
