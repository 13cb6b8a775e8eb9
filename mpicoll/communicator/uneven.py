"""One method for each collective whose blocks may be of uneven length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from mpicoll.arrays.protocols import A, Array, ArrayLike
from mpicoll.calls import results
from mpicoll.communicator.face import Face

if TYPE_CHECKING:
    from mpicoll.communicator.engine.names import AlgorithmLike, OpLike


class Uneven(Face):
    """The collective calls of the Communicator whose blocks may be of uneven length.

    A block is some rows of an array: a row is ``x[i]``, so an array of one dimension has elements as its rows. Counts
    are numbers of rows, one for each rank, none negative. All ranks have rows of the same number of elements.
    """

    @overload
    def allgatherv(
        self, x: Array[A], counts: Sequence[int], out: Array[A] | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> A: ...

    @overload
    def allgatherv(
        self, x: ArrayLike, counts: Sequence[int], out: ArrayLike | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> Any: ...

    def allgatherv(
        self, x: ArrayLike, counts: Sequence[int], out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Any:
        """Gather every rank's rows, in rank order. Every rank gets all of them.

        Rank r gives ``counts[r]`` rows. All ranks give the same ``counts``. ``out``, or the new array, has
        ``sum(counts)`` rows.
        """
        result = results.rows("allgatherv", x, counts, self.size) if out is None else out
        self._engine.run_new("allgatherv", x, result, None, 0, algorithm, recvcounts=counts)
        return result if result is out else results.in_kind(x, result)

    @overload
    def gatherv(
        self,
        x: Array[A],
        counts: Sequence[int],
        root: int = ...,
        out: Array[A] | None = ...,
        algorithm: AlgorithmLike | None = ...,
    ) -> A | None: ...

    @overload
    def gatherv(
        self,
        x: ArrayLike,
        counts: Sequence[int],
        root: int = ...,
        out: ArrayLike | None = ...,
        algorithm: AlgorithmLike | None = ...,
    ) -> Any: ...

    def gatherv(
        self,
        x: ArrayLike,
        counts: Sequence[int],
        root: int = 0,
        out: ArrayLike | None = None,
        algorithm: AlgorithmLike | None = None,
    ) -> Any:
        """Gather every rank's rows, in rank order. The root gets all of them; the other ranks get None.

        ``out`` is used at the root alone. All else is as in :meth:`allgatherv`.
        """
        result = out
        if out is None and self._engine.is_root("gatherv", root):
            result = results.rows("gatherv", x, counts, self.size)
        self._engine.run_new("gatherv", x, result, None, root, algorithm, recvcounts=counts)
        if not self._engine.is_root("gatherv", root):
            return None
        return result if result is out else results.in_kind(x, result)

    @overload
    def scatterv(
        self,
        xs: Array[A],
        counts: Sequence[int],
        root: int = ...,
        out: Array[A] | None = ...,
        algorithm: AlgorithmLike | None = ...,
    ) -> A: ...

    @overload
    def scatterv(
        self,
        xs: Array[A] | None,
        counts: Sequence[int],
        root: int = ...,
        *,
        out: Array[A],
        algorithm: AlgorithmLike | None = ...,
    ) -> A: ...

    @overload
    def scatterv(
        self,
        xs: ArrayLike | None,
        counts: Sequence[int],
        root: int = ...,
        out: ArrayLike | None = ...,
        algorithm: AlgorithmLike | None = ...,
    ) -> Any: ...

    def scatterv(
        self,
        xs: ArrayLike | None,
        counts: Sequence[int],
        root: int = 0,
        out: ArrayLike | None = None,
        algorithm: AlgorithmLike | None = None,
    ) -> Any:
        """Hand out the root's rows, in order: rank r gets ``counts[r]`` of them.

        All ranks give the same ``counts``. ``xs`` is used at the root alone, and has ``sum(counts)`` rows; other ranks
        may pass None. ``out`` has ``counts[r]`` rows. Only the root may leave it away: it gets a new array.
        """
        result = out
        if out is None and self._engine.is_root("scatterv", root):
            result = results.rows("scatterv", xs, counts, self.size, self.rank)
        self._engine.run_new("scatterv", xs, result, None, root, algorithm, sendcounts=counts)
        return result if result is out else results.in_kind(xs, result)

    @overload
    def reduce_scatterv(
        self,
        xs: Array[A],
        counts: Sequence[int],
        op: OpLike = ...,
        out: Array[A] | None = ...,
        algorithm: AlgorithmLike | None = ...,
    ) -> A: ...

    @overload
    def reduce_scatterv(
        self,
        xs: ArrayLike,
        counts: Sequence[int],
        op: OpLike = ...,
        out: ArrayLike | None = ...,
        algorithm: AlgorithmLike | None = ...,
    ) -> Any: ...

    def reduce_scatterv(
        self,
        xs: ArrayLike,
        counts: Sequence[int],
        op: OpLike = "sum",
        out: ArrayLike | None = None,
        algorithm: AlgorithmLike | None = None,
    ) -> Any:
        """Reduce ``xs`` over all ranks, element by element, and hand the rows of the result out, in order: rank r gets
        ``counts[r]`` of them.

        All ranks give the same ``counts``. ``xs`` has ``sum(counts)`` rows. ``out``, or the new array, has
        ``counts[r]`` rows.
        """
        result = results.rows("reduce_scatterv", xs, counts, self.size, self.rank) if out is None else out
        self._engine.run_new("reduce_scatterv", xs, result, op, 0, algorithm, sendcounts=counts)
        return result if result is out else results.in_kind(xs, result)

    @overload
    def alltoallv(
        self,
        xs: Array[A],
        sendcounts: Sequence[int],
        recvcounts: Sequence[int],
        out: Array[A] | None = ...,
        algorithm: AlgorithmLike | None = ...,
    ) -> A: ...

    @overload
    def alltoallv(
        self,
        xs: ArrayLike,
        sendcounts: Sequence[int],
        recvcounts: Sequence[int],
        out: ArrayLike | None = ...,
        algorithm: AlgorithmLike | None = ...,
    ) -> Any: ...

    def alltoallv(
        self,
        xs: ArrayLike,
        sendcounts: Sequence[int],
        recvcounts: Sequence[int],
        out: ArrayLike | None = None,
        algorithm: AlgorithmLike | None = None,
    ) -> Any:
        """Exchange rows: this rank sends ``sendcounts[r]`` rows of ``xs``, in order, to rank r, and receives
        ``recvcounts[r]`` rows from it.

        What one rank sends is what the other receives: rank a's ``sendcounts[b]`` is rank b's ``recvcounts[a]``. ``xs``
        has ``sum(sendcounts)`` rows. ``out``, or the new array, has ``sum(recvcounts)`` rows. ``out`` shares no memory
        with ``xs``.
        """
        result = results.rows("alltoallv", xs, recvcounts, self.size) if out is None else out
        self._engine.run_new("alltoallv", xs, result, None, 0, algorithm, sendcounts=sendcounts, recvcounts=recvcounts)
        return result if result is out else results.in_kind(xs, result)
