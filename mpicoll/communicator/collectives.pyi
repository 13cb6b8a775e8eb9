"""The types of the collectives: a method that can make a new array has overloads. NumPy arrays and torch tensors give
new ones of their own kind. For other memory, a type checker cannot know whether the new array is one of NumPy's or of
torch's."""

from collections.abc import Sequence
from typing import Any, overload

from mpicoll.arrays.protocols import A, Array, ArrayLike
from mpicoll.communicator.base import CommunicatorBase
from mpicoll.communicator.engine.base import AlgorithmLike, OpLike

class Collectives(CommunicatorBase):
    @overload
    def allreduce(
        self, x: Array[A], op: OpLike = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike = ...
    ) -> A: ...
    @overload
    def allreduce(
        self, x: ArrayLike, op: OpLike = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike = ...
    ) -> Any: ...
    @overload
    def reduce(
        self, x: Array[A], op: OpLike = ..., root: int = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike = ...
    ) -> A | None: ...
    @overload
    def reduce(
        self,
        x: ArrayLike,
        op: OpLike = ...,
        root: int = ...,
        out: ArrayLike | None = ...,
        algorithm: AlgorithmLike = ...,
    ) -> Any: ...
    def bcast(self, x: A, root: int = ..., algorithm: AlgorithmLike = ...) -> A: ...
    @overload
    def scan(self, x: Array[A], op: OpLike = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike = ...) -> A: ...
    @overload
    def scan(
        self, x: ArrayLike, op: OpLike = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike = ...
    ) -> Any: ...
    @overload
    def exscan(
        self, x: Array[A], op: OpLike = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike = ...
    ) -> A | None: ...
    @overload
    def exscan(
        self, x: ArrayLike, op: OpLike = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike = ...
    ) -> Any: ...
    @overload
    def allgather(self, x: Array[A], out: Array[A] | None = ..., algorithm: AlgorithmLike = ...) -> A: ...
    @overload
    def allgather(self, x: ArrayLike, out: ArrayLike | None = ..., algorithm: AlgorithmLike = ...) -> Any: ...
    @overload
    def gather(
        self, x: Array[A], root: int = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike = ...
    ) -> A | None: ...
    @overload
    def gather(
        self, x: ArrayLike, root: int = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike = ...
    ) -> Any: ...
    @overload
    def scatter(
        self, xs: Array[A], root: int = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike = ...
    ) -> A: ...
    @overload
    def scatter(self, xs: Array[A] | None, root: int = ..., *, out: Array[A], algorithm: AlgorithmLike = ...) -> A: ...
    @overload
    def scatter(
        self, xs: ArrayLike | None, root: int = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike = ...
    ) -> Any: ...
    @overload
    def reduce_scatter(
        self, xs: Array[A], op: OpLike = ..., out: Array[A] | None = ..., algorithm: AlgorithmLike = ...
    ) -> A: ...
    @overload
    def reduce_scatter(
        self, xs: ArrayLike, op: OpLike = ..., out: ArrayLike | None = ..., algorithm: AlgorithmLike = ...
    ) -> Any: ...
    @overload
    def alltoall(self, xs: Array[A], out: Array[A] | None = ..., algorithm: AlgorithmLike = ...) -> A: ...
    @overload
    def alltoall(self, xs: ArrayLike, out: ArrayLike | None = ..., algorithm: AlgorithmLike = ...) -> Any: ...
    def barrier(self, algorithm: AlgorithmLike = ...) -> None: ...
    @overload
    def allgatherv(
        self, x: Array[A], counts: Sequence[int], out: Array[A] | None = ..., algorithm: AlgorithmLike = ...
    ) -> A: ...
    @overload
    def allgatherv(
        self, x: ArrayLike, counts: Sequence[int], out: ArrayLike | None = ..., algorithm: AlgorithmLike = ...
    ) -> Any: ...
    @overload
    def gatherv(
        self,
        x: Array[A],
        counts: Sequence[int],
        root: int = ...,
        out: Array[A] | None = ...,
        algorithm: AlgorithmLike = ...,
    ) -> A | None: ...
    @overload
    def gatherv(
        self,
        x: ArrayLike,
        counts: Sequence[int],
        root: int = ...,
        out: ArrayLike | None = ...,
        algorithm: AlgorithmLike = ...,
    ) -> Any: ...
    @overload
    def scatterv(
        self,
        xs: Array[A],
        counts: Sequence[int],
        root: int = ...,
        out: Array[A] | None = ...,
        algorithm: AlgorithmLike = ...,
    ) -> A: ...
    @overload
    def scatterv(
        self,
        xs: Array[A] | None,
        counts: Sequence[int],
        root: int = ...,
        *,
        out: Array[A],
        algorithm: AlgorithmLike = ...,
    ) -> A: ...
    @overload
    def scatterv(
        self,
        xs: ArrayLike | None,
        counts: Sequence[int],
        root: int = ...,
        out: ArrayLike | None = ...,
        algorithm: AlgorithmLike = ...,
    ) -> Any: ...
    @overload
    def reduce_scatterv(
        self,
        xs: Array[A],
        counts: Sequence[int],
        op: OpLike = ...,
        out: Array[A] | None = ...,
        algorithm: AlgorithmLike = ...,
    ) -> A: ...
    @overload
    def reduce_scatterv(
        self,
        xs: ArrayLike,
        counts: Sequence[int],
        op: OpLike = ...,
        out: ArrayLike | None = ...,
        algorithm: AlgorithmLike = ...,
    ) -> Any: ...
    @overload
    def alltoallv(
        self,
        xs: Array[A],
        sendcounts: Sequence[int],
        recvcounts: Sequence[int],
        out: Array[A] | None = ...,
        algorithm: AlgorithmLike = ...,
    ) -> A: ...
    @overload
    def alltoallv(
        self,
        xs: ArrayLike,
        sendcounts: Sequence[int],
        recvcounts: Sequence[int],
        out: ArrayLike | None = ...,
        algorithm: AlgorithmLike = ...,
    ) -> Any: ...
