"""One method for each collective, and one that does not block. Their types are in ``collectives.pyi``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from mpicoll.algorithms.collectives import METHODS
from mpicoll.arrays.protocols import A, ArrayLike, Counts, Out
from mpicoll.calls import results
from mpicoll.calls.arguments import checked_rank
from mpicoll.communicator.base import CommunicatorBase
from mpicoll.communicator.engine.requests import Request
from mpicoll.communicator.repeated import repeated

if TYPE_CHECKING:
    from mpicoll.communicator.engine.base import OpLike


class Collectives(CommunicatorBase):
    """The collective calls of the Communicator.

    Those whose names end with ``v`` have blocks that may be of uneven length. There a block is some rows of an array: a
    row is ``x[i]``, so an array of one dimension has elements as its rows. Counts are numbers of rows, one for each
    rank, none negative. All ranks have rows of the same number of elements."""

    @repeated
    def allreduce(self, x: ArrayLike, op: OpLike = "sum", out: Out = None, algorithm: str | None = None) -> Any:
        """Reduce ``x`` over all ranks, element by element. Every rank gets the result.

        ``x`` has any shape; all ranks give the same number of elements. ``out`` has as many elements as ``x``. A new
        array has the shape of ``x``. ``out=x`` works in place."""
        return self._collective("allreduce", x, out, op, 0, algorithm)

    @repeated
    def reduce(
        self, x: ArrayLike, op: OpLike = "sum", root: int = 0, out: Out = None, algorithm: str | None = None
    ) -> Any:
        """Reduce ``x`` over all ranks, element by element. The root gets the result; the other ranks get None.

        ``x`` has any shape; all ranks give the same number of elements. ``out`` is used at the root alone, and has as
        many elements as ``x``. A new array has the shape of ``x``. ``out=x`` works in place."""
        return self._collective("reduce", x, out, op, root, algorithm)

    @repeated
    def bcast(self, x: A, root: int = 0, algorithm: str | None = None) -> A:
        """Copy the root's ``x`` to the ``x`` of every other rank. Returns ``x``.

        ``x`` has any shape; all ranks give the same number of elements. The root's is only read. Those of the other
        ranks are overwritten, so a read-only array there raises ArgumentError."""
        return self._collective("bcast", x, None, None, root, algorithm)

    @repeated
    def scan(self, x: ArrayLike, op: OpLike = "sum", out: Out = None, algorithm: str | None = None) -> Any:
        """Reduce ``x`` over the ranks 0 to r, element by element. Rank r gets the result.

        ``x`` has any shape; all ranks give the same number of elements. ``out`` has as many elements as ``x``. A new
        array has the shape of ``x``. ``out=x`` works in place."""
        return self._collective("scan", x, out, op, 0, algorithm)

    @repeated
    def exscan(self, x: ArrayLike, op: OpLike = "sum", out: Out = None, algorithm: str | None = None) -> Any:
        """Reduce ``x`` over the ranks 0 to r - 1, element by element. Rank r gets the result.

        Rank 0 has no result. Its ``out`` is left as it is and returned; without ``out`` rank 0 gets None. All else is
        as in :meth:`scan`."""
        return self._collective("exscan", x, out, op, 0, algorithm)

    @repeated
    def allgather(self, x: ArrayLike, out: Out = None, algorithm: str | None = None) -> Any:
        """Gather every rank's ``x``, in rank order. Every rank gets all of them.

        ``x`` has any shape; all ranks give the same number of elements. ``out`` has size times as many elements. A new
        array has the shape ``(size, *x.shape)``. Where ``x`` is the rank's own block of ``out``, ``out[rank]``, the
        call works in place."""
        return self._collective("allgather", x, out, None, 0, algorithm)

    @repeated
    def gather(self, x: ArrayLike, root: int = 0, out: Out = None, algorithm: str | None = None) -> Any:
        """Gather every rank's ``x``, in rank order. The root gets all of them; the other ranks get None.

        ``out`` is used at the root alone. All else is as in :meth:`allgather`."""
        return self._collective("gather", x, out, None, root, algorithm)

    @repeated
    def scatter(self, xs: ArrayLike | None, root: int = 0, out: Out = None, algorithm: str | None = None) -> Any:
        """Hand out the root's blocks: rank r gets the root's ``xs[r]``.

        ``xs`` is used at the root alone, and has size times as many elements as ``out``. Other ranks may pass None.
        They do not know the shape of a block, so they must give ``out``. The root may leave it away if ``xs`` has the
        shape ``(size, ...)``: its new array has the shape ``xs.shape[1:]``. Where ``out`` is the root's own block of
        ``xs``, the call works in place."""
        return self._collective("scatter", xs, out, None, root, algorithm)

    @repeated
    def reduce_scatter(self, xs: ArrayLike, op: OpLike = "sum", out: Out = None, algorithm: str | None = None) -> Any:
        """Reduce ``xs`` over all ranks, element by element, and hand the result out: rank r gets block r of it.

        ``xs`` has size times as many elements as ``out``; all ranks give the same number. Without ``out``, ``xs`` has
        the shape ``(size, ...)``, and the new array has the shape ``xs.shape[1:]``."""
        return self._collective("reduce_scatter", xs, out, op, 0, algorithm)

    @repeated
    def alltoall(self, xs: ArrayLike, out: Out = None, algorithm: str | None = None) -> Any:
        """Exchange blocks: rank r gets every rank's ``xs[r]``, in rank order.

        ``xs`` consists of size blocks of equal length, one for each rank, and has the same number of elements on all
        ranks. ``out`` has as many elements as ``xs``, and shares no memory with it. A new array has the shape of
        ``xs``."""
        return self._collective("alltoall", xs, out, None, 0, algorithm)

    @repeated
    def barrier(self, algorithm: str | None = None) -> None:
        """Return when all ranks have called it."""
        return self._collective("barrier", None, None, None, 0, algorithm)

    @repeated
    def allgatherv(self, x: ArrayLike, counts: Counts, out: Out = None, algorithm: str | None = None) -> Any:
        """Gather every rank's rows, in rank order. Every rank gets all of them.

        Rank r gives ``counts[r]`` rows. All ranks give the same ``counts``. ``out``, or the new array, has
        ``sum(counts)`` rows."""
        return self._collective("allgatherv", x, out, None, 0, algorithm, recvcounts=counts)

    @repeated
    def gatherv(
        self, x: ArrayLike, counts: Counts, root: int = 0, out: Out = None, algorithm: str | None = None
    ) -> Any:
        """Gather every rank's rows, in rank order. The root gets all of them; the other ranks get None.

        ``out`` is used at the root alone. All else is as in :meth:`allgatherv`."""
        return self._collective("gatherv", x, out, None, root, algorithm, recvcounts=counts)

    @repeated
    def scatterv(
        self, xs: ArrayLike | None, counts: Counts, root: int = 0, out: Out = None, algorithm: str | None = None
    ) -> Any:
        """Hand out the root's rows, in order: rank r gets ``counts[r]`` of them.

        All ranks give the same ``counts``. ``xs`` is used at the root alone, and has ``sum(counts)`` rows; other ranks
        may pass None. ``out`` has ``counts[r]`` rows. Only the root may leave it away: it gets a new array."""
        return self._collective("scatterv", xs, out, None, root, algorithm, sendcounts=counts)

    @repeated
    def reduce_scatterv(
        self, xs: ArrayLike, counts: Counts, op: OpLike = "sum", out: Out = None, algorithm: str | None = None
    ) -> Any:
        """Reduce ``xs`` over all ranks, element by element, and hand the rows of the result out, in order: rank r gets
        ``counts[r]`` of them.

        All ranks give the same ``counts``. ``xs`` has ``sum(counts)`` rows. ``out``, or the new array, has
        ``counts[r]`` rows."""
        return self._collective("reduce_scatterv", xs, out, op, 0, algorithm, sendcounts=counts)

    @repeated
    def alltoallv(
        self, xs: ArrayLike, sendcounts: Counts, recvcounts: Counts, out: Out = None, algorithm: str | None = None
    ) -> Any:
        """Exchange rows: this rank sends ``sendcounts[r]`` rows of ``xs``, in order, to rank r, and receives
        ``recvcounts[r]`` rows from it.

        What one rank sends is what the other receives: rank a's ``sendcounts[b]`` is rank b's ``recvcounts[a]``. ``xs``
        has ``sum(sendcounts)`` rows. ``out``, or the new array, has ``sum(recvcounts)`` rows. ``out`` shares no memory
        with ``xs``."""
        return self._collective("alltoallv", xs, out, None, 0, algorithm, sendcounts=sendcounts, recvcounts=recvcounts)

    def _collective(
        self,
        operation: str,
        x: Any,
        out: Any,
        op: OpLike | None,
        root: int,
        algorithm: str | None,
        sendcounts: Counts | None = None,
        recvcounts: Counts | None = None,
    ) -> Any:
        """Make a call, by the kernel if it knows a plan. Returns what the method of this name returns."""
        if type(root) is not int:
            root = checked_rank(root, self.size, operation, "root")
        table, rank, result = METHODS[operation][0], self.rank, out
        if rank != root and table.root == "gets":
            result = None
        elif out is None and table.moves and not table.in_x:
            result = results.made(operation, x, rank, self.size, root, sendcounts, recvcounts)
        there = None if result is x and table.elementwise else result
        self._engine.make(operation, x, there, op, root, algorithm, sendcounts, recvcounts)
        if table.in_x:
            return x
        if result is out:
            return out
        return None if table.prefix == "exclusive" and rank == 0 else results.in_kind(x, result)


class NonBlocking(CommunicatorBase):
    """The collectives of the Communicator that return at once, one for each that blocks.

    Each takes the arguments of the method without ``i``, and returns a :class:`Request`. No array of the call may be
    touched before the request is complete; its ``result`` is what the method would have returned. All ranks make the
    same calls in the same order, as of all collectives, and a call that does not block never meets one that does.

    Among ranks of one node, the kernel carries out the call. Otherwise it is MPI's own call, where MPI has one for
    the dtype and the operation and no algorithm is named. All else is carried out by a thread of this rank, or by who
    waits for it before the thread begins, on a communicator of its own. That needs MPI_THREAD_MULTIPLE. Without it,
    the call is complete when it returns."""


def _beginning(operation: str) -> Callable[..., Request]:
    """The method that begins a collective: it runs the code of the one that blocks, with another ``_collective``."""
    of = inspect.unwrap(vars(Collectives)[operation])
    run = FunctionType(of.__code__, of.__globals__, f"i{operation}", of.__defaults__)
    run.__qualname__ = f"NonBlocking.i{operation}"
    run.__doc__ = f"Start a{'n' * (operation[0] in 'ae')} :meth:`{operation}`."
    run.__module__ = __name__
    run.__annotations__ = {**of.__annotations__, "return": Request}

    def begin(self: NonBlocking, *args: Any, **named: Any) -> Request:
        begun: Request = run(SimpleNamespace(_collective=self._engine.begun), *args, **named)
        return begun

    return repeated(update_wrapper(begin, run))


for _operation in filter(vars(Collectives).__contains__, METHODS):
    setattr(NonBlocking, f"i{_operation}", _beginning(_operation))
