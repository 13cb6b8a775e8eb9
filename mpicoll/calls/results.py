"""New arrays for results, of the kind, dtype and device of what a rank gives."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray

from mpicoll.arrays.buffers import as_buffer
from mpicoll.arrays.protocols import ArrayLike
from mpicoll.calls.arguments import checked_counts
from mpicoll.errors import ArgumentError

__all__ = ["block", "like", "one_each", "rows"]


def like(operation: str, x: ArrayLike) -> Any:
    """As many elements as ``x``, in its shape."""
    if type(x) is ndarray:  # as_buffer takes microseconds
        return np.empty(x.shape, x.dtype)
    b = as_buffer(x, operation, "x")
    return b.like(b.shape)


def one_each(operation: str, x: ArrayLike, size: int) -> Any:
    """One ``x`` a rank."""
    b = as_buffer(x, operation, "x")
    return b.like((size, *b.shape))


def block(operation: str, xs: ArrayLike | None, size: int) -> Any:
    """One of the blocks of ``xs``, of which there is one a rank."""
    b = as_buffer(xs, operation, "x")
    if not b.shape or b.shape[0] != size:
        expected = f"shape ({size}, ...), a block a rank (or out, which says how it is cut)"
        raise ArgumentError(operation, "x", expected, f"shape {b.shape}")
    return b.like(b.shape[1:])


def rows(operation: str, x: ArrayLike | None, counts: Sequence[int], size: int, rank: int | None = None) -> Any:
    """Rows like those of ``x``: those of one rank, or of all where that is None."""
    b = as_buffer(x, operation, "x")
    of = checked_counts(counts, size, operation, "counts")
    shape = (sum(of) if rank is None else of[rank], *b.shape[1:])
    try:
        return b.like(shape)
    except (MemoryError, ValueError, RuntimeError, TypeError) as e:  # what NumPy and torch say of too many
        given = f"{shape[0]} rows of {prod(shape[1:])} elements of {b.dtype}"
        raise ArgumentError(operation, "counts", "rows that fit into memory", given) from e
