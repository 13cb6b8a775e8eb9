"""Arrays in memory that the ranks of a node share."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpicoll.communicator.face import Face
from mpicoll.errors import ArgumentError, DtypeError, StateError
from mpicoll.machine.blocks import allocate

__all__ = ["Memory"]


class Memory(Face):
    """New arrays on which collectives are fastest."""

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """A new, uninitialised array of NumPy's, in memory that the ranks of the node share where they can.

        Collectives of such arrays are carried out where they lie, if all ranks give such arrays. Any rank may make one
        at any time. It is an ordinary array in all else, and in ordinary memory where it is short (less than 16 KiB),
        where ranks are on several nodes, or where the system gives no such memory. The memory is free again when the
        last array that refers to it is gone. A child process that is forked shares it with its parent. Raises
        ArgumentError for what is no shape, and DtypeError for what is no dtype of NumPy's.
        """
        whole, wanted = _shape(shape, "empty"), _dtype(dtype, "empty")
        nbytes = prod(whole) * wanted.itemsize
        plain = not wanted.hasobject and wanted.subdtype is None
        memory = allocate(nbytes) if plain and self._engine.fabric.shares_arrays else None
        return np.empty(whole, wanted) if memory is None else memory.view(wanted).reshape(whole)

    def shared(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> list[NDArray[Any]]:
        """A new array of each rank, all of which every rank can read and write: element r is rank r's. Collective.

        All ranks give the same ``shape`` and ``dtype``. The arrays are filled with zeros. A rank sees what another has
        written before both came to a :meth:`barrier`. An array's memory is given back when no rank has a reference to
        it any more. MPI's ``Win.Allocate_shared`` and ``Shared_query`` do the same. Raises ArgumentError, on all ranks,
        if they give different shapes or dtypes, and StateError if they are on several nodes, where ``comm.node.shared``
        is what each node has, or if the system gives no such memory.
        """
        whole, wanted = _shape(shape, "shared"), _dtype(dtype, "shared")
        if wanted.hasobject or wanted.subdtype is not None:
            raise DtypeError("shared", "dtype", "numbers, or structures of numbers", repr(dtype))
        fabric, nbytes = self._engine.fabric, prod(whole) * wanted.itemsize
        if not fabric.one_node:
            raise StateError("shared: the ranks are on several nodes: comm.node.shared(...) is what each node has")
        given = f"{whole} of {wanted}"
        with self._engine.making("shared", "shared"):
            all_given = [bytes(each).decode() for each in fabric.parcels.allgather(given.encode())]
            memory = fabric.together(max(nbytes, 1)) if len(set(all_given)) == 1 else None
        for rank, theirs in enumerate(all_given):
            if theirs != given:
                raise ArgumentError("shared", "shape and dtype", f"those of rank {rank}, {theirs}", given)
        if memory is None:
            raise StateError(f"shared: the ranks cannot share {nbytes} bytes each: `mpicoll doctor` says more")
        return [each[:nbytes].view(wanted).reshape(whole) for each in memory]

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """The same as :meth:`empty`, filled with zeros."""
        made = self.empty(shape, dtype)
        made.fill(0)
        return made

    def empty_like(self, x: NDArray[Any]) -> NDArray[Any]:
        """The same as :meth:`empty`, with the shape and the dtype of ``x``."""
        if not isinstance(x, np.ndarray):
            raise ArgumentError("empty_like", "x", "an array of NumPy's", repr(type(x)))
        return self.empty(x.shape, x.dtype)


def _shape(given: object, operation: str) -> tuple[int, ...]:
    try:
        whole = tuple(map(index, given)) if isinstance(given, Iterable) else (index(given),)  # type: ignore[arg-type]
    except TypeError:
        whole = (-1,)
    if min(whole, default=0) < 0:
        raise ArgumentError(operation, "shape", "an int of 0 or more, or a tuple of them", repr(given))
    return whole


def _dtype(given: DTypeLike, operation: str) -> np.dtype[Any]:
    try:
        return np.dtype(given)
    except TypeError:
        raise DtypeError(operation, "dtype", "a dtype of NumPy's", repr(given)) from None
