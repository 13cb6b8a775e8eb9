"""One method for each collective, and for each of its forms with blocks of uneven length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy import ndarray

from mpicoll.arrays.buffers import as_buffer
from mpicoll.arrays.dtypes import Op
from mpicoll.calls import results
from mpicoll.communicator.base import Base

__all__ = ["Collectives"]


class Collectives(Base):
    """The collective calls of the Communicator."""

    def allreduce(self, x: Any, op: str | Op = "sum", out: Any = None, algorithm: str | None = None) -> Any:
        """Every rank gets the reduction over all ranks, element by element: ``out`` has ``x``'s number of elements."""
        if out is None:
            out = results.like("allreduce", x)
        # What plan and carry_out do, in line: the one call in which every tenth of a microsecond counts.
        try:
            there = None if out is x else self._key(out) or out
            at: Any
            if type(x) is ndarray:
                at = ("allreduce", self._address(x), x.size, x.dtype, x.flags.num, there, op, 0, algorithm)
            else:
                at = ("allreduce", *(self._key(x) or ()), there, op, 0, algorithm)
            plan = self._planned(at)
        except (TypeError, ValueError, BufferError):
            plan = None
        if plan is None:
            return self._elementwise("allreduce", x, out, op, 0, algorithm)
        try:
            plan()
        except BaseException as e:
            self._break(plan, "allreduce", e)
            raise
        return out

    def reduce(self, x: Any, op: str | Op = "sum", root: int = 0, out: Any = None, algorithm: str | None = None) -> Any:
        """The root gets the reduction over all ranks. ``out`` is unused on the others, and their result is None."""
        if self.rank == root:
            return self._elementwise("reduce", x, out, op, root, algorithm)
        self._run("reduce", x, None, op, root, algorithm)
        return None

    def bcast(self, x: Any, root: int = 0, algorithm: str | None = None) -> Any:
        """Every rank's ``x`` becomes the root's."""
        self._run("bcast", x, None, None, root, algorithm)
        return x

    def scan(self, x: Any, op: str | Op = "sum", out: Any = None, algorithm: str | None = None) -> Any:
        """Rank r gets the reduction over ranks 0 to r."""
        return self._elementwise("scan", x, out, op, 0, algorithm)

    def exscan(self, x: Any, op: str | Op = "sum", out: Any = None, algorithm: str | None = None) -> Any:
        """Rank r gets the reduction over ranks 0 to r - 1. Rank 0 has no result: its ``out`` is left as it is, and
        without one it gets None."""
        result = self._elementwise("exscan", x, out, op, 0, algorithm)
        return None if out is None and self.rank == 0 else result

    def allgather(self, x: Any, out: Any = None, algorithm: str | None = None) -> Any:
        """Every rank gets every rank's ``x``, in rank order: ``out`` is (size, \\*x.shape)."""
        if out is None:
            out = results.one_each("allgather", x, self.size)
        self._run("allgather", x, out, None, 0, algorithm)
        return out

    def gather(self, x: Any, root: int = 0, out: Any = None, algorithm: str | None = None) -> Any:
        """The root gets every rank's ``x``, in rank order: ``out`` is (size, \\*x.shape) there, unused elsewhere."""
        if out is None and self.rank == root:
            out = results.one_each("gather", x, self.size)
        self._run("gather", x, out, None, root, algorithm)
        return out if self.rank == root else None

    def scatter(self, xs: Any, root: int = 0, out: Any = None, algorithm: str | None = None) -> Any:
        """Rank r gets the root's ``xs[r]``. ``xs`` is (size, \\*out.shape) and used at the root only; ``out`` may be
        None there alone."""
        if out is None and self.rank == root:
            out = results.block("scatter", xs, self.size)
        self._run("scatter", xs, out, None, root, algorithm)
        return out

    def reduce_scatter(self, xs: Any, op: str | Op = "sum", out: Any = None, algorithm: str | None = None) -> Any:
        """Rank r gets the reduction over all ranks of their ``xs[r]``: ``xs`` is (size, \\*out.shape)."""
        if out is None:
            out = results.block("reduce_scatter", xs, self.size)
        self._run("reduce_scatter", xs, out, op, 0, algorithm)
        return out

    def alltoall(self, xs: Any, out: Any = None, algorithm: str | None = None) -> Any:
        """Rank r gets every rank's ``xs[r]``, in rank order: ``xs`` and ``out`` are (size, ...)."""
        if out is None:
            b = as_buffer(xs, "alltoall", "x")
            out = b.like(b.shape)
        self._run("alltoall", xs, out, None, 0, algorithm)
        return out

    def barrier(self, algorithm: str | None = None) -> None:
        """Returns when all ranks have called it."""
        self._run("barrier", None, None, None, 0, algorithm)

    # -- uneven blocks: counts are rows of dimension 0 ----------------------------------------------------------------

    def allgatherv(self, x: Any, counts: Sequence[int], out: Any = None, algorithm: str | None = None) -> Any:
        """Every rank gets every rank's rows: rank r gives ``counts[r]``, ``out`` has their sum."""
        if out is None:
            out = results.rows("allgatherv", x, counts, self.size)
        self._run("allgatherv", x, out, None, 0, algorithm, recvcounts=counts)
        return out

    def gatherv(
        self, x: Any, counts: Sequence[int], root: int = 0, out: Any = None, algorithm: str | None = None
    ) -> Any:
        """The root gets every rank's rows: rank r gives ``counts[r]``, the root's ``out`` has their sum."""
        if out is None and self.rank == root:
            out = results.rows("gatherv", x, counts, self.size)
        self._run("gatherv", x, out, None, root, algorithm, recvcounts=counts)
        return out if self.rank == root else None

    def scatterv(
        self, xs: Any, counts: Sequence[int], root: int = 0, out: Any = None, algorithm: str | None = None
    ) -> Any:
        """Rank r gets ``counts[r]`` of the root's rows, in order. ``out`` may be None at the root alone."""
        if out is None and self.rank == root:
            out = results.rows("scatterv", xs, counts, self.size, self.rank)
        self._run("scatterv", xs, out, None, root, algorithm, sendcounts=counts)
        return out

    def reduce_scatterv(
        self, xs: Any, counts: Sequence[int], op: str | Op = "sum", out: Any = None, algorithm: str | None = None
    ) -> Any:
        """Rank r gets ``counts[r]`` rows, in order, of the reduction over all ranks."""
        if out is None:
            out = results.rows("reduce_scatterv", xs, counts, self.size, self.rank)
        self._run("reduce_scatterv", xs, out, op, 0, algorithm, sendcounts=counts)
        return out

    def alltoallv(
        self,
        xs: Any,
        sendcounts: Sequence[int],
        recvcounts: Sequence[int],
        out: Any = None,
        algorithm: str | None = None,
    ) -> Any:
        """Rank r is given ``sendcounts[r]`` rows, in order, and ``recvcounts[r]`` rows are taken from it."""
        if out is None:
            out = results.rows("alltoallv", xs, recvcounts, self.size)
        self._run("alltoallv", xs, out, None, 0, algorithm, sendcounts=sendcounts, recvcounts=recvcounts)
        return out

    def _elementwise(self, operation: str, x: Any, out: Any, op: str | Op, root: int, algorithm: str | None) -> Any:
        """A call whose result has as many elements as ``x``; returns where it is."""
        if out is None:
            out = results.like(operation, x)
        self._run(operation, x, None if out is x else out, op, root, algorithm)
        return out
