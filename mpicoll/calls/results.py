"""New arrays for results, with the kind, dtype and device of the array that a rank gives.

Where that array lies in memory that ranks share, the result does, too. A call fills arrays of NumPy or torch.
``in_kind`` makes arrays of other libraries of them, whose own may be immutable."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy import ndarray

from mpicoll.algorithms.collectives import METHODS, input_of
from mpicoll.arrays.buffers import Buffer, as_buffer
from mpicoll.arrays.libraries import library_of, loaded_torch
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


def made(
    operation: str, x: Any, rank: int, size: int, root: int, sendcounts: Any = None, recvcounts: Any = None
) -> Any:
    """A new array for the result of any collective on this rank. None where it has no result, or where only the caller
    knows its shape."""
    table, uneven = METHODS[operation]
    if not table.moves or table.in_x or (table.rooted and rank != root):
        return None
    if not (table.scatters or uneven):
        new = like(x, size) if table.gathers else like(x)
        if new is not None:
            return new
    b = as_buffer(x, operation, input_of(operation))
    if uneven:
        rows_of = checked_counts(sendcounts if table.scatters else recvcounts, size, operation, "counts")
        shape = (rows_of[rank] if table.scatters else sum(rows_of), *b.shape[1:])
        try:
            return _new(b, shape)
        except (MemoryError, ValueError, RuntimeError, TypeError) as e:  # NumPy and torch raise these for too many rows
            given = f"{shape[0]} rows of {prod(shape[1:])} elements of {b.dtype}"
            raise ArgumentError(operation, "counts", "rows that fit into memory", given) from e
    if table.scatters and (not b.shape or b.shape[0] != size):
        expected = f"shape ({size}, ...), one block for each rank (xs may have any shape if out is given)"
        raise ArgumentError(operation, "xs", expected, f"shape {b.shape}")
    return _new(b, (size, *b.shape) if table.gathers else b.shape[1:] if table.scatters else b.shape)


def _new(b: Buffer, shape: tuple[int, ...]) -> Any:
    """An array of this shape, like that of ``b``, and in shared memory if that one is."""
    shared = b.device == "cpu" and blocks.exist() and blocks.own_at(b.address, 1) is not None
    return b.like(shape, blocks.allocate(prod(shape) * b.dtype.itemsize) if shared else None)


def ends(
    operation: str, x: Any, out: Any, rank: int, size: int, root: int, sendcounts: Any, recvcounts: Any
) -> tuple[Any, Any, bool]:
    """Where a call writes, which is ``out`` or new; what a Communicator's method returns; and whether that is to be
    made an array of the library of ``x``."""
    table, _ = METHODS[operation]
    target = made(operation, x, rank, size, root, sendcounts, recvcounts) if out is None else out
    nothing = not table.gets_at(rank, root) or (table.prefix == "exclusive" and rank == 0 and out is None)
    result = x if table.in_x else None if nothing else target
    is_new = result is not out and result is not x
    return target, result, is_new and type(x) is not ndarray and library_of(x) is not None


def in_kind(x: Any, made: Any) -> Any:
    """A result that was made for a call on ``x``, as an array of the library of ``x``: over the same memory where the
    library can, or over a copy."""
    if type(made) is type(x) or isinstance(x, ndarray) or (library := library_of(x)) is None or made is None:
        return made
    if not isinstance(made, ndarray):
        return library.from_dlpack(made)
    if made.dtype.isbuiltin != 1:  # NumPy gives bfloat16 to nobody by DLPack
        return library.asarray(made.copy())
    return library.from_dlpack(made)
