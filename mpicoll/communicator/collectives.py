"""One method for each collective. Those whose blocks are of uneven length are in ``uneven``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from mpicoll.arrays.protocols import A, Array, ArrayLike
from mpicoll.calls import results
from mpicoll.communicator.face import Face
from mpicoll.communicator.repeated import repeated

if TYPE_CHECKING:
    from mpicoll.communicator.engine.names import AlgorithmLike, OpLike

# A method that can make a new array has overloads. NumPy arrays and torch tensors give new ones of their own kind. For
# other memory, a type checker cannot know whether the new array is one of NumPy's or of torch's.


class Collectives(Face):
    """The collective calls of the Communicator."""

    @overload
    def allreduce(
        self, x: Array[A], op: OpLike = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> A: ...

    @overload
    def allreduce(
        self, x: ArrayLike, op: OpLike = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> Any: ...

    @repeated
    def allreduce(
        self, x: ArrayLike, op: OpLike = "sum", out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Any:
        """Reduce ``x`` over all ranks, element by element. Every rank gets the result.

        ``x`` has any shape; all ranks give the same number of elements. ``out`` has as many elements as ``x``. A new
        array has the shape of ``x``. ``out=x`` works in place.
        """
        return self._elementwise("allreduce", x, out, op, 0, algorithm)

    @overload
    def reduce(
        self,
        x: Array[A],
        op: OpLike = ...,
        root: int = ...,
        out: Array[A] | None = ...,
        algorithm: AlgorithmLike | None = ...,
    ) -> A | None: ...

    @overload
    def reduce(
        self,
        x: ArrayLike,
        op: OpLike = ...,
        root: int = ...,
        out: ArrayLike | None = ...,
        algorithm: AlgorithmLike | None = ...,
    ) -> Any: ...

    @repeated
    def reduce(
        self,
        x: ArrayLike,
        op: OpLike = "sum",
        root: int = 0,
        out: ArrayLike | None = None,
        algorithm: AlgorithmLike | None = None,
    ) -> Any:
        """Reduce ``x`` over all ranks, element by element. The root gets the result; the other ranks get None.

        ``x`` has any shape; all ranks give the same number of elements. ``out`` is used at the root alone, and has as
        many elements as ``x``. A new array has the shape of ``x``. ``out=x`` works in place.
        """
        if self._engine.is_root("reduce", root):
            return self._elementwise("reduce", x, out, op, root, algorithm)
        self._run("reduce", x, None, op, root, algorithm)
        return None

    @repeated
    def bcast(self, x: A, root: int = 0, algorithm: AlgorithmLike | None = None) -> A:
        """Copy the root's ``x`` to the ``x`` of every other rank. Returns ``x``.

        ``x`` has any shape; all ranks give the same number of elements. The root's is only read. Those of the other
        ranks are overwritten, so a read-only array there raises ArgumentError.
        """
        self._run("bcast", x, None, None, root, algorithm)
        return x

    @overload
    def scan(
        self, x: Array[A], op: OpLike = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> A: ...

    @overload
    def scan(
        self, x: ArrayLike, op: OpLike = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> Any: ...

    @repeated
    def scan(
        self, x: ArrayLike, op: OpLike = "sum", out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Any:
        """Reduce ``x`` over the ranks 0 to r, element by element. Rank r gets the result.

        ``x`` has any shape; all ranks give the same number of elements. ``out`` has as many elements as ``x``. A new
        array has the shape of ``x``. ``out=x`` works in place.
        """
        return self._elementwise("scan", x, out, op, 0, algorithm)

    @overload
    def exscan(
        self, x: Array[A], op: OpLike = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> A | None: ...

    @overload
    def exscan(
        self, x: ArrayLike, op: OpLike = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> Any: ...

    @repeated
    def exscan(
        self, x: ArrayLike, op: OpLike = "sum", out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Any:
        """Reduce ``x`` over the ranks 0 to r - 1, element by element. Rank r gets the result.

        Rank 0 has no result. Its ``out`` is left as it is and returned; without ``out`` rank 0 gets None. All else is
        as in :meth:`scan`.
        """
        result = self._elementwise("exscan", x, out, op, 0, algorithm)
        return None if out is None and self.rank == 0 else result

    @overload
    def allgather(self, x: Array[A], out: Array[A] | None = ..., algorithm: AlgorithmLike | None = ...) -> A: ...

    @overload
    def allgather(self, x: ArrayLike, out: ArrayLike | None = ..., algorithm: AlgorithmLike | None = ...) -> Any: ...

    @repeated
    def allgather(self, x: ArrayLike, out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None) -> Any:
        """Gather every rank's ``x``, in rank order. Every rank gets all of them.

        ``x`` has any shape; all ranks give the same number of elements. ``out`` has size times as many elements. A new
        array has the shape ``(size, *x.shape)``. Where ``x`` is the rank's own block of ``out``, ``out[rank]``, the
        call works in place.
        """
        result = results.one_each("allgather", x, self.size) if out is None else out
        self._run("allgather", x, result, None, 0, algorithm)
        return result if result is out else results.in_kind(x, result)

    @overload
    def gather(
        self, x: Array[A], root: int = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> A | None: ...

    @overload
    def gather(
        self, x: ArrayLike, root: int = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> Any: ...

    @repeated
    def gather(
        self, x: ArrayLike, root: int = 0, out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Any:
        """Gather every rank's ``x``, in rank order. The root gets all of them; the other ranks get None.

        ``out`` is used at the root alone. All else is as in :meth:`allgather`.
        """
        if not self._engine.is_root("gather", root):
            self._run("gather", x, None, None, root, algorithm)
            return None
        result = results.one_each("gather", x, self.size) if out is None else out
        self._run("gather", x, result, None, root, algorithm)
        return result if result is out else results.in_kind(x, result)

    @overload
    def scatter(
        self, xs: Array[A], root: int = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> A: ...

    @overload
    def scatter(
        self, xs: Array[A] | None, root: int = ..., *, out: Array[A], algorithm: AlgorithmLike | None = ...
    ) -> A: ...

    @overload
    def scatter(
        self, xs: ArrayLike | None, root: int = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> Any: ...

    @repeated
    def scatter(
        self, xs: ArrayLike | None, root: int = 0, out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Any:
        """Hand out the root's blocks: rank r gets the root's ``xs[r]``.

        ``xs`` is used at the root alone, and has size times as many elements as ``out``. Other ranks may pass None.
        They do not know the shape of a block, so they must give ``out``. The root may leave it away if ``xs`` has the
        shape ``(size, ...)``: its new array has the shape ``xs.shape[1:]``. Where ``out`` is the root's own block of
        ``xs``, the call works in place.
        """
        result = out
        if out is None and self._engine.is_root("scatter", root):
            result = results.block("scatter", xs, self.size)
        self._run("scatter", xs, result, None, root, algorithm)
        return result if result is out else results.in_kind(xs, result)

    @overload
    def reduce_scatter(
        self, xs: Array[A], op: OpLike = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> A: ...

    @overload
    def reduce_scatter(
        self, xs: ArrayLike, op: OpLike = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike | None = ...
    ) -> Any: ...

    @repeated
    def reduce_scatter(
        self, xs: ArrayLike, op: OpLike = "sum", out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None
    ) -> Any:
        """Reduce ``xs`` over all ranks, element by element, and hand the result out: rank r gets block r of it.

        ``xs`` has size times as many elements as ``out``; all ranks give the same number. Without ``out``, ``xs`` has
        the shape ``(size, ...)``, and the new array has the shape ``xs.shape[1:]``.
        """
        result = results.block("reduce_scatter", xs, self.size) if out is None else out
        self._run("reduce_scatter", xs, result, op, 0, algorithm)
        return result if result is out else results.in_kind(xs, result)

    @overload
    def alltoall(self, xs: Array[A], out: Array[A] | None = ..., algorithm: AlgorithmLike | None = ...) -> A: ...

    @overload
    def alltoall(self, xs: ArrayLike, out: ArrayLike | None = ..., algorithm: AlgorithmLike | None = ...) -> Any: ...

    @repeated
    def alltoall(self, xs: ArrayLike, out: ArrayLike | None = None, algorithm: AlgorithmLike | None = None) -> Any:
        """Exchange blocks: rank r gets every rank's ``xs[r]``, in rank order.

        ``xs`` consists of size blocks of equal length, one for each rank, and has the same number of elements on all
        ranks. ``out`` has as many elements as ``xs``, and shares no memory with it. A new array has the shape of
        ``xs``.
        """
        result = results.like("alltoall", xs) if out is None else out
        self._run("alltoall", xs, result, None, 0, algorithm)
        return result if result is out else results.in_kind(xs, result)

    @repeated
    def barrier(self, algorithm: AlgorithmLike | None = None) -> None:
        """Return when all ranks have called it."""
        self._run("barrier", None, None, None, 0, algorithm)

    def _elementwise(
        self, operation: str, x: Any, out: Any, op: OpLike, root: int, algorithm: AlgorithmLike | None
    ) -> Any:
        """A call whose result has as many elements as ``x``; returns where it is."""
        result = results.like(operation, x) if out is None else out
        self._run(operation, x, None if result is x else result, op, root, algorithm)
        return result if result is out else results.in_kind(x, result)
