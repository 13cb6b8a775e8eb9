"""Arrays in memory that the ranks of a node share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpicoll.communicator.base import CommunicatorBase
from mpicoll.errors import ArgumentError, DtypeError, StateError
from mpicoll.machine.blocks import LEAST, allocate, refusal
from mpicoll.supervise import sites
from mpicoll.supervise.record import Record


class Memory(CommunicatorBase):
    """New arrays on which collectives are fastest."""

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """A new, uninitialised array of NumPy's, in memory that the ranks of the node share where they can.

        Collectives of such arrays are carried out where they lie, if all ranks give such arrays. Any rank may make one
        at any time. It is an ordinary array in all else, and in ordinary memory where it is short (less than 16 KiB),
        where ranks are on several nodes, in an elastic job, or where the system gives no such memory. When the last
        array that refers to the memory is gone, the process keeps it for other arrays of about that length. A child
        process that is forked shares it with its parent. Rank 0 warns where a long array is an ordinary one.
        Raises ArgumentError for what is no shape of an array, and DtypeError for what is no dtype of NumPy's."""
        return self._made("empty", shape, dtype)

    def _made(self, operation: str, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        whole, wanted = _shape(shape, operation), _dtype(dtype, operation)
        nbytes = prod(whole) * wanted.itemsize
        plain = not wanted.hasobject and wanted.subdtype is None
        memory = self._shared_memory(nbytes) if plain and LEAST <= nbytes <= sys.maxsize else None
        try:
            return np.empty(whole, wanted) if memory is None else memory.view(wanted).reshape(whole)
        except ValueError as error:
            raise _no_array(operation, whole, error) from None

    def _shared_memory(self, nbytes: int) -> NDArray[np.uint8] | None:
        fabric = self._engine.fabric
        memory = allocate(nbytes) if fabric.info.shares_memory else None
        if memory is None and self.rank == 0 and self.size > 1 and fabric.info.library:  # threads share all memory
            _warn(refusal(nbytes) if fabric.info.shares_memory else "the ranks share no memory (`mpicoll doctor`)")
        return memory

    def shared(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> list[NDArray[Any]]:
        """A new array of each rank, all of which every rank can read and write: element r is rank r's. Collective.

        All ranks give the same ``shape`` and ``dtype``. The arrays are filled with zeros. A rank sees what another has
        written before both came to a :meth:`barrier`. An array's memory is given back when no rank has a reference to
        it any more. MPI's ``Win.Allocate_shared`` and ``Shared_query`` do the same. Raises ArgumentError, on all ranks,
        if they give different shapes or dtypes, and StateError if they are on several nodes, where ``comm.node.shared``
        is what each node has, or if the system gives no such memory."""
        whole, wanted = _shape(shape, "shared"), _dtype(dtype, "shared")
        if wanted.hasobject or wanted.subdtype is not None or wanted.itemsize == 0:
            raise DtypeError("shared", "dtype", "numbers, or structures of numbers", repr(dtype))
        try:
            np.broadcast_to(np.empty((), wanted), whole)  # before the ranks meet
        except ValueError as error:
            raise _no_array("shared", whole, error) from None
        fabric, nbytes = self._engine.fabric, prod(whole) * wanted.itemsize
        if not fabric.info.one_node:
            raise StateError("shared: the ranks are on several nodes: comm.node.shared(...) is what each node has")
        given = f"{whole} of {wanted}"

        def made() -> tuple[list[str], Sequence[NDArray[np.uint8]] | None]:
            said = fabric.allgather(given)
            return said, fabric.together(max(nbytes, 1)) if len(set(said)) == 1 else None

        all_given, memory = self._engine.together(Record("shared"), made)
        for rank, theirs in enumerate(all_given):
            if theirs != given:
                raise ArgumentError("shared", "shape and dtype", f"those of rank {rank}, {theirs}", given)
        if memory is None:
            raise StateError(f"shared: the ranks cannot share {nbytes} bytes each (`mpicoll doctor`)")
        return [each[:nbytes].view(wanted).reshape(whole) for each in memory]

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """The same as :meth:`empty`, filled with zeros."""
        made = self._made("zeros", shape, dtype)
        made.fill(0)
        return made

    def empty_like(self, x: NDArray[Any]) -> NDArray[Any]:
        """The same as :meth:`empty`, with the shape and the dtype of ``x``."""
        if not isinstance(x, np.ndarray):
            raise ArgumentError("empty_like", "x", "an array of NumPy's", repr(type(x)))
        return self._made("empty_like", x.shape, x.dtype)


@cache
def _warn(why: str) -> None:
    sites.warn(f"mpicoll: comm.empty makes ordinary arrays: {why}")


def _shape(given: object, operation: str) -> tuple[int, ...]:
    try:
        whole = tuple(map(index, given)) if isinstance(given, Iterable) else (index(given),)  # type: ignore[arg-type]
    except TypeError:
        whole = (-1,)
    if min(whole, default=0) < 0:
        raise ArgumentError(operation, "shape", "an int of 0 or more, or a tuple of them", repr(given))
    return whole


def _no_array(operation: str, shape: tuple[int, ...], why: ValueError) -> ArgumentError:
    """The error for a shape that no array can have: it is too long, or has too many dimensions."""
    return ArgumentError(operation, "shape", "that of an array of NumPy's", f"{shape} ({why})")


def _dtype(given: DTypeLike, operation: str) -> np.dtype[Any]:
    try:
        return np.dtype(given)
    except (TypeError, ValueError) as error:
        raise DtypeError(operation, "dtype", "a dtype of NumPy's", f"{given!r} ({error})") from None
