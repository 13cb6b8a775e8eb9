"""The engine of a communicator, with collectives that do not block: MPI's own, or those of a thread of this rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mpicoll.arrays.buffers import Buffer, library_of
from mpicoll.arrays.dtypes import Op, name_of
from mpicoll.calls import results
from mpicoll.calls.call import Call, checked
from mpicoll.calls.plan import Plan, sequence
from mpicoll.calls.record import Pending, Record, record_of
from mpicoll.calls.select import select
from mpicoll.communicator.engine.aside import Aside, Handed
from mpicoll.communicator.engine.collectives import Collectives
from mpicoll.communicator.engine.copies import copied_to_host, settled, written_back
from mpicoll.communicator.engine.message import Message
from mpicoll.communicator.engine.message_calls import MessageCalls
from mpicoll.communicator.engine.requests import Finish, Request
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.fabric import Nobody, Transfer
from mpicoll.guard.limit import limited

if TYPE_CHECKING:
    from mpicoll.communicator.engine.names import AlgorithmLike, OpLike

__all__ = ["Engine"]


class Engine(Collectives, MessageCalls):
    """Makes collectives and messages over a fabric, for a Communicator's methods, torch's groups and other threads."""

    _aside: Aside[Engine] | None = None

    def begun(
        self,
        operation: str,
        x: Any,
        out: Any = None,
        op: OpLike | None = None,
        root: int = 0,
        algorithm: AlgorithmLike | None = None,
        sendcounts: Sequence[int] | None = None,
        recvcounts: Sequence[int] | None = None,
    ) -> Request:
        name = f"i{operation}"
        self.check_open(name)
        if op is not None and type(op) is not str and type(op) is not Op:
            op = name_of(op, name)
        given = out
        try:
            if out is None:
                out = results.made(operation, x, self.rank, self.size, root, sendcounts, recvcounts)
            there = None if out is x else out
            call = checked(operation, self.rank, self.size, x, there, op, root, sendcounts, recvcounts)
            select(operation, call.reduction, call.nbytes(self.size), self.binding.traits, call.root, algorithm)
        except ArgumentError as e:
            raise type(e)(name, e.argument, e.expected, e.given) from None
        record = record_of(call, algorithm, self.size)
        record = Record(f"i{record.description}", record.nbytes, record.elements, record.dtype, record.root)
        in_order = self.binding.traits.in_rank_order(call.reduction)
        by_mpi = algorithm in (None, "native") and not self.hooks and not in_order
        native = self._native(call) if by_mpi else None
        if native is None:
            number = self.recorder.begun

            def run(engine: Engine) -> None:
                try:
                    plan = engine.plan(operation, x, there, op, root, algorithm, sendcounts, recvcounts)
                    engine.carry_out(plan, name)
                except Exception:
                    self._close_with(engine)
                    raise
                self.recorder.unsure.discard(number)
                settled(call.send, call.recv)

            settled(call.send, call.recv)  # the thread has another queue
            native = self._handed(run), sequence(), None
        transfer, after, copies = native
        result = results.returned(operation, x, given, out, self.rank, root)
        in_kind = result is not given and result is not x and library_of(x) is not None

        def finish() -> Any:
            after()
            return results.in_kind(x, result) if in_kind else result

        return self._recorded(record, transfer, finish, (x, out, copies), result)

    def _native(self, call: Call) -> tuple[Transfer, Plan, object] | None:
        """The call as one of MPI's own, what is to be done at its end, and what it reads until then. Memory that MPI
        cannot use as it lies is copied now, and back at the end."""
        recv, (sent, received) = call.recv, (b and self.as_usable(b) for b in (call.send, call.recv))
        begun = self.fabric.begin(replace(call, send=sent, recv=received))
        if begun is None:
            return None
        transfer, after = begun
        if recv is not None and received is not None and received is not recv and not call.only_read_at(self.rank):
            after = sequence(after, partial(written_back, recv, received))
        return transfer, after, (sent, received)

    def as_usable(self, b: Buffer) -> Buffer:
        """The buffer, or a copy of it where MPI cannot use it as it lies."""
        return b if self.fabric.usable(b) else copied_to_host(b)

    def _handed(self, run: Callable[[Engine], None]) -> Transfer:
        """The call as one that a thread carries out."""
        if not self.fabric.any_thread:
            run(self)
            return Nobody(self.fabric.nobody, self.fabric.any_tag, 0)
        if self._aside is None:
            make, settings, limit = self.fabric.beside(), self.settings, self.limit

            def made() -> Engine:
                with limited("making a communicator for the calls that do not block", limit):
                    return Engine(make(), *settings)

            self._aside = Aside(made)
        return Handed(self._aside, run)

    def _close_with(self, engine: Engine) -> None:
        """Close this communicator if the thread's one was closed: its ranks are no more together than that one's."""
        if engine is not self and engine.closed and not self.closed:
            self.lost = engine.lost
            self.close(engine.closed, goes_on=True)

    def free(self) -> None:
        if not self.closed:
            if self._aside is not None:
                self._aside.finish()
            self.under_way.complete()
            self.binding.devices.free()
        super().free()

    def _recorded(self, record: Record, transfer: Transfer, finish: Finish, arrays: object, result: Any) -> Request:
        """The call begins: it is recorded in the order of the program, as every collective."""
        operation = record.description.partition(" ")[0]
        pending = Pending(
            operation, record.description, record.elements, record.dtype, f"{record.description} is not complete"
        )
        recorder = self.recorder
        recorder.begin(record)
        if self.agreement is not None and isinstance(transfer, Handed):
            recorder.unsure.add(recorder.begun - 1)
        try:
            return self.started(Message(pending, transfer, False, True, 2 * record.nbytes), arrays, finish, result)
        finally:
            recorder.under_way = False
