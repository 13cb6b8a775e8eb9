"""New arrays for results, with the kind, dtype and device of the array that a rank gives.

Where that array lies in memory that ranks share, the result does, too. A call fills arrays of NumPy or torch.
``in_kind`` makes arrays of other libraries of them, whose own may be immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from mpicoll.algorithms.collectives import COLLECTIVES, even_and_uneven, input_of
from mpicoll.arrays.buffers import Buffer, as_buffer, library_of, loaded_torch
from mpicoll.arrays.protocols import ArrayLike
from mpicoll.calls.arguments import checked_counts
from mpicoll.errors import ArgumentError
from mpicoll.machine import blocks


def like(x: Any, *more: int) -> Any:
    """An array of the shape of ``x``, with ``more`` dimensions before those; None if it takes longer to find out what
    ``x`` is."""
    if not blocks.exist():
        if isinstance(x, ndarray):
            return np.empty((*more, *x.shape) if more else x.shape, x.dtype)
        if (torch := loaded_torch()) is not None and type(x) is torch.Tensor and not x.is_nested:
            return x.new_empty((*more, *x.shape)) if more or not x.is_contiguous() else torch.empty_like(x)
    return None


def _like(operation: str, x: Any, size: int, *more: int) -> Any:
    """The same for every array."""
    if (made := like(x, *more)) is not None:
        return made
    b = as_buffer(x, operation, input_of(operation))
    return _new(b, (*more, *b.shape))


def _new(b: Buffer, shape: tuple[int, ...]) -> Any:
    """An array of this shape, like that of ``b``, and in shared memory if that one is."""
    shared = b.device == "cpu" and blocks.exist() and blocks.own_at(b.address, 1) is not None
    return b.like(shape, blocks.allocate(prod(shape) * b.dtype.itemsize) if shared else None)


def _one_each(operation: str, x: Any, size: int) -> Any:
    """An array of ``size`` arrays of the shape of ``x``, one for each rank."""
    return _like(operation, x, size, size)


def _block(operation: str, xs: ArrayLike | None, size: int) -> Any:
    """An array of the shape of one block of ``xs``, which has one block for each rank."""
    b = as_buffer(xs, operation, "xs")
    if not b.shape or b.shape[0] != size:
        expected = f"shape ({size}, ...), one block for each rank (xs may have any shape if out is given)"
        raise ArgumentError(operation, "xs", expected, f"shape {b.shape}")
    return _new(b, b.shape[1:])


def _rows(operation: str, x: ArrayLike | None, counts: Sequence[int], size: int, rank: int | None = None) -> Any:
    """An array of rows like those of ``x``: the rows of one rank, or of all ranks if ``rank`` is None."""
    b = as_buffer(x, operation, input_of(operation))
    rows_of = checked_counts(counts, size, operation, "counts")
    shape = (sum(rows_of) if rank is None else rows_of[rank], *b.shape[1:])
    try:
        return _new(b, shape)
    except (MemoryError, ValueError, RuntimeError, TypeError) as e:  # NumPy and torch raise these for too many rows
        given = f"{shape[0]} rows of {prod(shape[1:])} elements of {b.dtype}"
        raise ArgumentError(operation, "counts", "rows that fit into memory", given) from e


class Row(NamedTuple):
    """What there is to know of the results of one operation."""

    make: Callable[[str, Any, int], Any] | None
    """Makes a new array of the ranks that have one. None where only the caller knows its shape, or none is needed."""
    rooted: bool
    """Whether only the root makes one."""
    only_root: bool
    """Whether only the root has a result."""
    elementwise: bool
    returns_x: bool
    """Whether the result is in ``x``."""
    nothing_at_0: bool
    """Whether rank 0 has no result."""


def _row(operation: str) -> Row:
    table, _ = even_and_uneven(operation)
    returns_x = table.root == "gives" and table.elementwise
    make = None
    if table.moves and not returns_x:
        make = _one_each if table.gathers else _block if table.scatters else _like
    return Row(make, table.rooted, table.root == "gets", table.elementwise, returns_x, table.prefix == "exclusive")


ROWS = {name: _row(name) for c in COLLECTIVES for name in (c, f"{c}v")}


def is_like_input(operation: str) -> bool:
    """Whether every rank's result has the shape of its input."""
    row = ROWS[operation]
    return row.make is _like and not (row.rooted or row.nothing_at_0)


def made(
    operation: str, x: Any, rank: int, size: int, root: int, sendcounts: Any = None, recvcounts: Any = None
) -> Any:
    """A new array for the result of any collective on this rank. None where it has no result, or where only the caller
    knows its shape."""
    row = ROWS[operation]
    if row.make is None or (row.rooted and rank != root):
        return None
    if operation not in COLLECTIVES:
        scatters = row.make is _block
        return _rows(operation, x, *((sendcounts, size, rank) if scatters else (recvcounts, size)))
    return row.make(operation, x, size)


def ends(
    operation: str, x: Any, out: Any, rank: int, size: int, root: int, sendcounts: Any, recvcounts: Any
) -> tuple[Any, Any, bool]:
    """Where a call writes, which is ``out`` or new; what a Communicator's method returns; and whether that is to be
    made an array of the library of ``x``."""
    row = ROWS[operation]
    target = made(operation, x, rank, size, root, sendcounts, recvcounts) if out is None else out
    nothing = (row.only_root and rank != root) or (row.nothing_at_0 and rank == 0 and out is None)
    result = x if row.returns_x else None if nothing else target
    is_new = result is not out and result is not x
    return target, result, is_new and type(x) is not ndarray and library_of(x) is not None


def in_kind(x: Any, made: Any, copied: bool = False) -> Any:
    """A result that was made for a call on ``x``, as an array of the library of ``x``: over the same memory where the
    library can, or over a copy."""
    if type(made) is type(x) or isinstance(x, ndarray) or (library := library_of(x)) is None or made is None:
        return made
    if not isinstance(made, ndarray):
        return library.from_dlpack(made.clone() if copied else made)
    if made.dtype.isbuiltin != 1:  # NumPy gives bfloat16 to nobody by DLPack
        return library.asarray(made.copy())
    return library.from_dlpack(made.copy() if copied else made)
