"""Arguments that are numbers: ranks, counts, tags, colours. Each is checked before any data moves."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from mpicoll.errors import ArgumentError

__all__ = ["MOST_INT", "checked_counts", "checked_int", "checked_rank", "sequence_of"]

MOST_INT = 2**31 - 1
"""The largest int of C's, in which MPI counts colours and keys."""


def checked_int(given: Any, least: int, most: int, operation: str, argument: str, instead: str = "") -> int:
    """``given`` as an int, if it is one from ``least`` to ``most``; the message says what may stand ``instead``."""
    try:
        found = index(given)
    except TypeError:
        found = least - 1
    if not least <= found <= most:
        raise ArgumentError(operation, argument, f"{instead}an int from {least} to {most}", repr(given))
    return found


def sequence_of(given: Any, operation: str, argument: str, what: str) -> Sequence[Any]:
    """``given`` as a sequence, if it can be gone through."""
    try:
        return list(given)
    except TypeError:
        raise ArgumentError(operation, argument, f"a sequence of {what}", repr(given)) from None


def checked_rank(rank: Any, size: int, operation: str, argument: str) -> int:
    """``rank`` as an int, if it is one of ``size`` ranks."""
    try:
        found = index(rank)
    except TypeError:
        found = -1
    if isinstance(rank, bool) or not 0 <= found < size:
        raise ArgumentError(operation, argument, f"a rank, 0 to {size - 1}", repr(rank))
    return found


def checked_counts(counts: Any, size: int, operation: str, argument: str) -> tuple[int, ...]:
    """``counts`` as one non-negative int a rank."""
    try:
        found = tuple(index(n) for n in counts)
    except TypeError:
        found = ()
    if len(found) != size or any(n < 0 for n in found):
        raise ArgumentError(operation, argument, f"{size} counts of rows, one a rank, none negative", repr(counts))
    return found
