"""Collectives that do not block: one method for each, whose Request is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mpicoll.arrays.buffers import Buffer, library_of
from mpicoll.arrays.dtypes import Op, name_of
from mpicoll.arrays.protocols import ArrayLike
from mpicoll.calls import results
from mpicoll.calls.call import Call, checked
from mpicoll.calls.plan import Plan, sequence
from mpicoll.calls.record import Pending, Record, record_of
from mpicoll.calls.select import select
from mpicoll.communicator import staging
from mpicoll.communicator.aside import Aside, Handed
from mpicoll.communicator.base import Base
from mpicoll.communicator.requests import Message, Request
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.fabric import Nobody, Transfer

if TYPE_CHECKING:
    from mpicoll.communicator.base import AlgorithmLike, OpLike

__all__ = ["NonBlocking"]


class NonBlocking(Base):
    """The collectives of the Communicator that return at once.

    Each takes the arguments of the method without ``i``, and returns a :class:`Request`. No array of the call may be
    touched before the request is complete; its ``result`` is what the method would have returned. All ranks make the
    same calls in the same order, as of all collectives, and a call that does not block never meets one that does.

    MPI's own call carries it out, where MPI has one for the dtype and the operation and no algorithm is named. All else
    is carried out by a thread of this rank, on a communicator of its own, which needs MPI_THREAD_MULTIPLE. Without
    that, the call is complete when it returns.
    """

    _aside: Aside | None = None

    def ibarrier(self, algorithm: AlgorithmLike | None = None) -> Request:
        """Start a :meth:`barrier`."""
        return self._begun("barrier", None, algorithm=algorithm)

    def ibcast(self, x: ArrayLike, root: int = 0, algorithm: AlgorithmLike | None = None) -> Request:
        """Start a :meth:`bcast`."""
        return self._begun("bcast", x, root=root, algorithm=algorithm)

    def ireduce(
        self,
        x: ArrayLike,
        op: OpLike = "sum",
        root: int = 0,
        out: ArrayLike | None = None,
        algorithm: AlgorithmLike | None = None,
    ) -> Request:
        """Start a :meth:`reduce`."""
        return self._begun("reduce", x, out, op, root, algorithm)

    def iallreduce(
        self, x: ArrayLike, op: OpLike = "sum", out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Request:
        """Start an :meth:`allreduce`."""
        return self._begun("allreduce", x, out, op, algorithm=algorithm)

    def iscan(
        self, x: ArrayLike, op: OpLike = "sum", out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Request:
        """Start a :meth:`scan`."""
        return self._begun("scan", x, out, op, algorithm=algorithm)

    def iexscan(
        self, x: ArrayLike, op: OpLike = "sum", out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Request:
        """Start an :meth:`exscan`."""
        return self._begun("exscan", x, out, op, algorithm=algorithm)

    def igather(
        self, x: ArrayLike, root: int = 0, out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Request:
        """Start a :meth:`gather`."""
        return self._begun("gather", x, out, root=root, algorithm=algorithm)

    def iallgather(self, x: ArrayLike, out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None) -> Request:
        """Start an :meth:`allgather`."""
        return self._begun("allgather", x, out, algorithm=algorithm)

    def iscatter(
        self, xs: ArrayLike | None, root: int = 0, out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Request:
        """Start a :meth:`scatter`."""
        return self._begun("scatter", xs, out, root=root, algorithm=algorithm)

    def ireduce_scatter(
        self, xs: ArrayLike, op: OpLike = "sum", out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Request:
        """Start a :meth:`reduce_scatter`."""
        return self._begun("reduce_scatter", xs, out, op, algorithm=algorithm)

    def ialltoall(self, xs: ArrayLike, out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None) -> Request:
        """Start an :meth:`alltoall`."""
        return self._begun("alltoall", xs, out, algorithm=algorithm)

    def igatherv(
        self,
        x: ArrayLike,
        counts: Sequence[int],
        root: int = 0,
        out: ArrayLike | None = None,
        algorithm: AlgorithmLike | None = None,
    ) -> Request:
        """Start a :meth:`gatherv`."""
        return self._begun("gatherv", x, out, root=root, algorithm=algorithm, recvcounts=counts)

    def iallgatherv(
        self, x: ArrayLike, counts: Sequence[int], out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Request:
        """Start an :meth:`allgatherv`."""
        return self._begun("allgatherv", x, out, algorithm=algorithm, recvcounts=counts)

    def iscatterv(
        self,
        xs: ArrayLike | None,
        counts: Sequence[int],
        root: int = 0,
        out: ArrayLike | None = None,
        algorithm: AlgorithmLike | None = None,
    ) -> Request:
        """Start a :meth:`scatterv`."""
        return self._begun("scatterv", xs, out, root=root, algorithm=algorithm, sendcounts=counts)

    def ireduce_scatterv(
        self,
        xs: ArrayLike,
        counts: Sequence[int],
        op: OpLike = "sum",
        out: ArrayLike | None = None,
        algorithm: AlgorithmLike | None = None,
    ) -> Request:
        """Start a :meth:`reduce_scatterv`."""
        return self._begun("reduce_scatterv", xs, out, op, algorithm=algorithm, sendcounts=counts)

    def ialltoallv(
        self,
        xs: ArrayLike,
        sendcounts: Sequence[int],
        recvcounts: Sequence[int],
        out: ArrayLike | None = None,
        algorithm: AlgorithmLike | None = None,
    ) -> Request:
        """Start an :meth:`alltoallv`."""
        return self._begun("alltoallv", xs, out, algorithm=algorithm, sendcounts=sendcounts, recvcounts=recvcounts)

    # -- how they are carried out -------------------------------------------------------------------------------------

    def _begun(
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
            select(operation, call.reduction, call.nbytes(self.size), self.traits, call.root, algorithm)
        except ArgumentError as e:
            raise type(e)(name, e.argument, e.expected, e.given) from None
        record = record_of(call, algorithm, self.size)
        record = Record(f"i{record.words}", record.nbytes, record.elements, record.dtype)
        by_mpi = algorithm in (None, "native") and self._agreement is None and not self._refuses_nans
        native = self._native(call) if by_mpi else None
        if native is None:
            run = partial(_carry_out, operation, x, there, op, root, algorithm, sendcounts, recvcounts)
            native = self._handed(run), sequence(), None
        transfer, after, copies = native
        request = self._recorded(record, transfer, after, (x, out, copies))
        request.result = results.returned(operation, x, given, out, self.rank)
        if request.result is not given and request.result is not x and library_of(x) is not None:
            request._finish = sequence(request._finish or sequence(), partial(_hand_over, request, x))
        return request

    def _native(self, call: Call) -> tuple[Transfer, Plan, object] | None:
        """The call as one of MPI's own, what is to be done at its end, and what it reads until then. Memory that MPI
        cannot use as it lies is copied now, and back at the end."""
        recv, (sent, received) = call.recv, map(self._usable, (call.send, call.recv))
        begun = self._fabric.begin(replace(call, send=sent, recv=received))
        if begun is None:
            return None
        transfer, after = begun
        if recv is not None and received is not None and received is not recv and not call.only_read_at(self.rank):
            after = sequence(after, partial(staging.written_back, recv, received))
        return transfer, after, (sent, received)

    def _usable(self, b: Buffer | None) -> Buffer | None:
        return b if b is None or self._fabric.usable(b) else staging.copied_to_host(b)

    def _handed(self, run: Any) -> Transfer:
        """The call as one that a thread carries out."""
        if not self._fabric.any_thread:
            run(self)
            return Nobody(self._fabric.nobody, self._fabric.any_tag, 0)
        if self._aside is None:
            self._aside = Aside(self._made_beside(self._fabric.beside()))
        return Handed(self._aside, run)

    def _recorded(self, record: Record, transfer: Transfer, finish: Plan, arrays: object) -> Request:
        """The call begins: it is recorded in the order of the program, as every collective."""
        operation = record.words.partition(" ")[0]
        pending = Pending(operation, record.words, record.elements, record.dtype, f"{record.words} is not complete")
        recorder = self._recorder
        recorder.begin(record)
        try:
            return self._started(Message(pending, transfer, False, True), arrays, finish)
        finally:
            recorder.under_way = False


def _hand_over(request: Request, x: Any) -> None:
    """At its end, the result becomes an array of the library of ``x``."""
    request.result = results.in_kind(x, request.result)


def _carry_out(
    operation: str, x: Any, out: Any, op: Any, root: int, algorithm: Any, sendcounts: Any, recvcounts: Any, comm: Base
) -> None:
    comm.carry_out(comm.plan(operation, x, out, op, root, algorithm, sendcounts, recvcounts), operation)
