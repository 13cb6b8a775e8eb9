"""Collectives that do not block: one method for each, whose Request is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpicoll.arrays.protocols import ArrayLike, Counts, Out
from mpicoll.communicator.base import CommunicatorBase
from mpicoll.communicator.engine.requests import Request
from mpicoll.communicator.repeated import repeated

if TYPE_CHECKING:
    from mpicoll.communicator.engine.base import OpLike


class NonBlocking(CommunicatorBase):
    """The collectives of the Communicator that return at once.

    Each takes the arguments of the method without ``i``, and returns a :class:`Request`. No array of the call may be
    touched before the request is complete; its ``result`` is what the method would have returned. All ranks make the
    same calls in the same order, as of all collectives, and a call that does not block never meets one that does.

    Among ranks of one node, the kernel carries out the call. Otherwise it is MPI's own call, where MPI has one for
    the dtype and the operation and no algorithm is named. All else is carried out by a thread of this rank, or by who
    waits for it before the thread begins, on a communicator of its own. That needs MPI_THREAD_MULTIPLE. Without it,
    the call is complete when it returns."""

    @repeated
    def ibarrier(self, algorithm: str | None = None) -> Request:
        """Start a :meth:`barrier`."""
        return self._engine.begun("barrier", None, algorithm=algorithm)

    @repeated
    def ibcast(self, x: ArrayLike, root: int = 0, algorithm: str | None = None) -> Request:
        """Start a :meth:`bcast`."""
        return self._engine.begun("bcast", x, root=root, algorithm=algorithm)

    @repeated
    def ireduce(
        self, x: ArrayLike, op: OpLike = "sum", root: int = 0, out: Out = None, algorithm: str | None = None
    ) -> Request:
        """Start a :meth:`reduce`."""
        return self._engine.begun("reduce", x, out, op, root, algorithm)

    @repeated
    def iallreduce(self, x: ArrayLike, op: OpLike = "sum", out: Out = None, algorithm: str | None = None) -> Request:
        """Start an :meth:`allreduce`."""
        return self._engine.begun("allreduce", x, out, op, algorithm=algorithm)

    @repeated
    def iscan(self, x: ArrayLike, op: OpLike = "sum", out: Out = None, algorithm: str | None = None) -> Request:
        """Start a :meth:`scan`."""
        return self._engine.begun("scan", x, out, op, algorithm=algorithm)

    @repeated
    def iexscan(self, x: ArrayLike, op: OpLike = "sum", out: Out = None, algorithm: str | None = None) -> Request:
        """Start an :meth:`exscan`."""
        return self._engine.begun("exscan", x, out, op, algorithm=algorithm)

    @repeated
    def igather(self, x: ArrayLike, root: int = 0, out: Out = None, algorithm: str | None = None) -> Request:
        """Start a :meth:`gather`."""
        return self._engine.begun("gather", x, out, root=root, algorithm=algorithm)

    @repeated
    def iallgather(self, x: ArrayLike, out: Out = None, algorithm: str | None = None) -> Request:
        """Start an :meth:`allgather`."""
        return self._engine.begun("allgather", x, out, algorithm=algorithm)

    @repeated
    def iscatter(self, xs: ArrayLike | None, root: int = 0, out: Out = None, algorithm: str | None = None) -> Request:
        """Start a :meth:`scatter`."""
        return self._engine.begun("scatter", xs, out, root=root, algorithm=algorithm)

    @repeated
    def ireduce_scatter(
        self, xs: ArrayLike, op: OpLike = "sum", out: Out = None, algorithm: str | None = None
    ) -> Request:
        """Start a :meth:`reduce_scatter`."""
        return self._engine.begun("reduce_scatter", xs, out, op, algorithm=algorithm)

    @repeated
    def ialltoall(self, xs: ArrayLike, out: Out = None, algorithm: str | None = None) -> Request:
        """Start an :meth:`alltoall`."""
        return self._engine.begun("alltoall", xs, out, algorithm=algorithm)

    @repeated
    def igatherv(
        self, x: ArrayLike, counts: Counts, root: int = 0, out: Out = None, algorithm: str | None = None
    ) -> Request:
        """Start a :meth:`gatherv`."""
        return self._engine.begun("gatherv", x, out, root=root, algorithm=algorithm, recvcounts=counts)

    @repeated
    def iallgatherv(self, x: ArrayLike, counts: Counts, out: Out = None, algorithm: str | None = None) -> Request:
        """Start an :meth:`allgatherv`."""
        return self._engine.begun("allgatherv", x, out, algorithm=algorithm, recvcounts=counts)

    @repeated
    def iscatterv(
        self, xs: ArrayLike | None, counts: Counts, root: int = 0, out: Out = None, algorithm: str | None = None
    ) -> Request:
        """Start a :meth:`scatterv`."""
        return self._engine.begun("scatterv", xs, out, root=root, algorithm=algorithm, sendcounts=counts)

    @repeated
    def ireduce_scatterv(
        self, xs: ArrayLike, counts: Counts, op: OpLike = "sum", out: Out = None, algorithm: str | None = None
    ) -> Request:
        """Start a :meth:`reduce_scatterv`."""
        return self._engine.begun("reduce_scatterv", xs, out, op, algorithm=algorithm, sendcounts=counts)

    @repeated
    def ialltoallv(
        self, xs: ArrayLike, sendcounts: Counts, recvcounts: Counts, out: Out = None, algorithm: str | None = None
    ) -> Request:
        """Start an :meth:`alltoallv`."""
        return self._engine.begun(
            "alltoallv", xs, out, algorithm=algorithm, sendcounts=sendcounts, recvcounts=recvcounts
        )
