"""Arrays in memory that the ranks of a node share."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpicoll.communicator.face import Face
from mpicoll.errors import ArgumentError, DtypeError
from mpicoll.machine.blocks import allocate

__all__ = ["Memory"]


class Memory(Face):
    """New arrays on which collectives are fastest."""

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """A new, uninitialised array of NumPy's, in memory that the ranks of the node share where they can.

        An ``allreduce`` of such arrays is carried out where they lie, if all ranks give such arrays, and copies
        nothing. Any rank may make one at any time. It is an ordinary array in all else, and in ordinary memory where it
        is short (less than 16 KiB), where ranks are on several nodes, or where the system gives no such memory. The
        memory is free again when the last array that refers to it is gone. A child process that is forked shares it
        with its parent. Raises ArgumentError for what is no shape, and DtypeError for what is no dtype of NumPy's.
        """
        whole, wanted = _shape(shape), _dtype(dtype)
        nbytes = prod(whole) * wanted.itemsize
        plain = not wanted.hasobject and wanted.subdtype is None
        memory = allocate(nbytes) if plain and self._engine.fabric.shares_arrays else None
        return np.empty(whole, wanted) if memory is None else memory.view(wanted).reshape(whole)

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


def _shape(given: object) -> tuple[int, ...]:
    try:
        whole = tuple(map(index, given)) if isinstance(given, Iterable) else (index(given),)  # type: ignore[arg-type]
    except TypeError:
        whole = (-1,)
    if min(whole, default=0) < 0:
        raise ArgumentError("empty", "shape", "an int of 0 or more, or a tuple of them", repr(given))
    return whole


def _dtype(given: DTypeLike) -> np.dtype[Any]:
    try:
        return np.dtype(given)
    except TypeError:
        raise DtypeError("empty", "dtype", "a dtype of NumPy's", repr(given)) from None
