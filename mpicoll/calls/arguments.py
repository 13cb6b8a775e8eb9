"""Arguments that are numbers: ranks, counts, tags, colours. Each is checked before any data moves."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from mpicoll.errors import ArgumentError, shown_argument

MOST_INT = 2**31 - 1  # the largest int of C. MPI's colours and keys are such ints


def checked_int(given: Any, least: int, most: int, operation: str, argument: str, instead: str = "") -> int:
    """``given`` as an int from ``least`` to ``most``. Raises ArgumentError if it is none. The error says that
    ``instead``, what else the caller takes, was expected too."""
    try:
        number = index(given)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise ArgumentError(operation, argument, f"{instead}an int from {least} to {most}", repr(given))
    return number


def sequence_of(given: Any, operation: str, argument: str, what: str) -> Sequence[Any]:
    """``given`` as a list. Raises ArgumentError if it cannot be iterated over."""
    try:
        return list(given)
    except TypeError:
        raise ArgumentError(operation, argument, f"a sequence of {what}", repr(given)) from None


def as_rank(given: Any) -> int:
    """``given`` as an int; -1, which is nobody's rank, if it is none."""
    if type(given) is int:
        return given
    try:
        return -1 if isinstance(given, bool) else index(given)
    except TypeError:
        return -1


def checked_rank(rank: Any, size: int, operation: str, argument: str) -> int:
    """``rank`` as an int. Raises ArgumentError if it is none of ``size`` ranks."""
    number = as_rank(rank)
    if not 0 <= number < size:
        raise ArgumentError(operation, argument, f"a rank, 0 to {size - 1}", shown_argument(rank))
    return number


def checked_counts(counts: Any, size: int, operation: str, argument: str) -> tuple[int, ...]:
    """``counts`` as a tuple of one int for each rank. Raises ArgumentError if it is none, or if a count is negative."""
    try:
        numbers = tuple(index(n) for n in counts)
    except TypeError:
        numbers = ()
    if len(numbers) != size or any(n < 0 for n in numbers):
        expected = f"{size} counts of rows, one for each rank, none negative"
        raise ArgumentError(operation, argument, expected, repr(counts))
    return numbers
