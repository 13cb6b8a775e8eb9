"""The engine of a communicator, with collectives that do not block: MPI's own, or those of a thread of this rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy import ndarray

from mpicoll.arrays.buffers import Buffer, exported, library_of
from mpicoll.arrays.dtypes import Op, name_of
from mpicoll.calls import results
from mpicoll.calls.call import Call, checked, record_of
from mpicoll.calls.choose import NATIVE, Choice, choose
from mpicoll.communicator.engine.collectives import Collectives
from mpicoll.communicator.engine.message import Message, Startable
from mpicoll.communicator.engine.message_calls import MessageCalls
from mpicoll.communicator.engine.packing import End, Packed, reads_output, settled
from mpicoll.communicator.engine.progress import OnThread, ProgressThread
from mpicoll.communicator.engine.requests import Finish, Request
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.fabric import Nobody, Transfer
from mpicoll.node.loaded import kernel
from mpicoll.supervise.ending import limited
from mpicoll.supervise.record import Pending, Record

if TYPE_CHECKING:
    from mpicoll.communicator.engine.base import AlgorithmLike, OpLike


class Engine(Collectives, MessageCalls):
    """Makes collectives and messages over a fabric, for a Communicator's methods, torch's groups and other threads."""

    _progress: ProgressThread | None = None
    """Carries out collectives that do not block and that MPI has no call for."""
    _twin: Engine | None = None
    """The engine through which it does so, over a communicator of its own: the program may make calls meanwhile."""

    def begun(
        self,
        operation: str,
        x: Any,
        out: Any = None,
        op: OpLike | None = None,
        root: int = 0,
        algorithm: AlgorithmLike = None,
        sendcounts: Sequence[int] | None = None,
        recvcounts: Sequence[int] | None = None,
    ) -> Request:
        name = f"i{operation}"
        self.check_open(name)
        if op is not None and type(op) is not str and type(op) is not Op:
            op = name_of(op, name)
        if results.ROWS[operation].only_root and root != self.rank:
            out = None  # it is not used there, and the kernel finds the call again without it
        given = out
        try:
            if out is None:
                out = results.made(operation, x, self.rank, self.size, root, sendcounts, recvcounts)
            here, there = exported(x), None if out is x else exported(out)
            result = results.returned(operation, x, given, out, self.rank, root)
            is_new = result is not given and result is not x
            in_kind = is_new and type(x) is not ndarray and library_of(x) is not None
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
                    self._close_with(engine)
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

        def finish() -> Any:
            return results.in_kind(x, result)

        return self._recorded(known.record, message, finish if in_kind else None, (x, out, here, there), result)

    def _startable(
        self, operation: str, x: Any, out: Any, op: Any, root: Any, algorithm: Any, *counts: Any
    ) -> Startable:
        """The call, checked, or found again."""
        at = self.at(f"i{operation}", x, out, op, root, algorithm, *counts)
        found = self.startable.find(at)
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
        if self.checks:
            return None
        by_library = algorithm in (None, NATIVE) and not self.info.in_rank_order(call.reduction)
        begin = partial(self.fabric.begin, choice=choice, record=record, by_library=by_library)
        if self.fabric.takes(call, choice):
            return begin(call.without_arrays())
        bare = replace(call, send=None, recv=None)

        def bind(sent: Buffer | None, came: Buffer | None) -> Transfer | None:
            return begin(replace(bare, send=sent, recv=came))

        if bind(*(b and b.part(0, b.count) for b in (call.send, call.recv))) is None:
            return None
        recv = End(call.recv, reads_output(call, self.rank), not call.only_read_at(self.rank))
        return Packed(bind, End(call.send, True, False), recv, message=False)

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

    def _close_with(self, engine: Engine) -> None:
        """Close this communicator if the thread's one was closed: its ranks are no more together than that one's."""
        if engine is not self and engine.closed and not self.closed:
            self.lost = engine.lost
            self.close(engine.closed, goes_on=True)

    def free(self) -> None:
        if not self.closed:
            if self._progress is not None:
                self._progress.finish()
            if self._twin is not None:
                self._twin.free()
            self.under_way.complete()
            self.devices.free()
        super().free()

    def _recorded(
        self, record: Record, message: Message, finish: Finish | None, arrays: object, result: Any
    ) -> Request:
        """The call begins: it is recorded in the order of the program, as every collective."""
        recorder = self.recorder
        recorder.begin(record)
        if self.agreement is not None and isinstance(message.transfer, OnThread):
            recorder.unsure.add(recorder.begun - 1)
        try:
            return self.started(message, arrays, finish, result)
        finally:
            recorder.under_way = False


def _message(pending: Pending, record: Record, transfer: Transfer) -> Message:
    return Message(pending, transfer, False, True, 2 * record.nbytes, True)
