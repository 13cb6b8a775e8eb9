"""What the ranks give, and what must come out.

Inputs are small integers, so that every result is exact in every dtype, whatever the order of the reduction and
however many the ranks. They depend on the rank and on the element's place in the rank's whole input, with a period
that is a prime: a block that ends up in another block's place is seen. One period is therefore all that has to be
computed; an input and a result are that period, repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays.kernels import COMBINE, narrow, storage
from mpicoll.bench.rules import Case

__all__ = ["expected", "given", "words"]

Array = NDArray[Any]
Period = NDArray[np.int64]

PRIMES = (1009, 1013, 1019)
DISTINCT = 113
"""Values of data that is only moved, and of minima: positive, and below what int8 holds."""
CONTRIBUTING = {"SUM": 16, "PROD": 6, "BAND": 3, "BOR": 3, "LAND": 2, "LOR": 2}
"""Ranks, at most, that give a neutral-breaking value at one place: 16 sevens stay below 127, and 6 twos do."""


def words(dtype_size: int) -> tuple[np.dtype[Any], int]:
    """(unsigned type, how many of them) that hold an element's bits."""
    return (np.dtype(f"u{dtype_size}"), 1) if dtype_size <= 8 else (np.dtype("u8"), dtype_size // 8)


def given(case: Case) -> Array:
    """One period of this rank's input, as words. The input is the period repeated, then cut off."""
    return _stored(_values(case, case.rank, 0), case)


def expected(case: Case) -> list[Array] | None:
    """One period of each block of this rank's result, as words; None where the rank has no result.

    The meaning comes from :meth:`Collective.outcome`, run on names of blocks; numbers are computed for this rank alone.
    """
    if not case.rule.sized:
        return None
    blocks = range(case.given_blocks)
    inputs = [[_Block(case, r, b) for b in blocks] for r in range(case.ranks)]
    mine = case.rule.collective.outcome(inputs, case.root, _Folded)[case.rank]
    return None if mine is None else [_stored(block.period(), case) for block in mine]


class _Block:
    """A block of a rank's input, by name."""

    def __init__(self, case: Case, rank: int, index: int) -> None:
        self.case, self.rank, self.index = case, rank, index

    def period(self) -> Period:
        return _values(self.case, self.rank, self.index * self.case.count)


class _Folded(_Block):
    """The blocks of several ranks, reduced."""

    def __init__(self, blocks: Sequence[_Block]) -> None:
        self.blocks, self.case = blocks, blocks[0].case

    def period(self) -> Period:
        r = self.case.reduction
        assert r is not None
        total = reduce(COMBINE[r.combine], (b.period() for b in self.blocks)).astype(np.int64)
        if not r.averages:
            return total
        if r.dtype.kind in "iu":  # short integers wrap before they are divided
            total = total.astype(storage(r.dtype)).astype(np.int64)
        return np.asarray(np.sign(total) * (np.abs(total) // len(self.blocks)))


def _values(case: Case, rank: int, start: int) -> Period:
    """One period of ``rank``'s input from its element ``start`` on, as integers."""
    prime = next((p for p in PRIMES if case.count % p), PRIMES[0])
    place = (start + np.arange(prime, dtype=np.int64)) % prime
    scattered = _scattered(place, rank)
    combine = "" if case.reduction is None else case.reduction.combine
    logical = case.dtype.kind == "b" or combine.startswith("L")
    # With more ranks than may contribute at one place, they take turns along the vector.
    contributes = (place + rank) % -(-case.ranks // CONTRIBUTING.get(combine, case.ranks)) == 0
    averages = case.reduction is not None and case.reduction.averages
    match combine:
        case "SUM" if averages and case.name in ("scan", "exscan"):
            # What makes the average over the first ranks, up to this one, a small integer of its own.
            mean, before = scattered % 4, _scattered(place, rank - 1) % 4
            return np.asarray((rank + 1) * mean - rank * before)
        case "SUM" if averages:
            # Multiples of the number of ranks, so that each quotient is whole, too; few, so that bfloat16 holds them.
            few = max(1, min(case.ranks, 64 // case.ranks))
            contributes = (place + rank) % -(-case.ranks // few) == 0
            return np.asarray(contributes * case.ranks * (1 << scattered % 3))
        case "SUM":
            return np.asarray(contributes * (1 + scattered % 7))
        case "PROD":
            return np.asarray(1 + contributes * (scattered % 2))
        case "BAND":
            return np.asarray(127 - contributes * (1 << scattered % 7))
        case "BOR":
            return np.asarray(contributes * (1 << scattered % 7))
        case "LAND":
            return np.asarray(1 - contributes * (scattered % 2))
        case "LOR":
            return np.asarray(contributes * (scattered % 2))
        case _:
            return scattered % (2 if logical else DISTINCT)


def _scattered(place: Period, rank: int) -> Period:
    """Integers from 0 that look random, but are the same wherever they are computed."""
    x = place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64((rank + 1) * 0xD1B54A32D192ED03 % 2**64)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (x >> np.uint64(40)).astype(np.int64)


def _stored(values: Period, case: Case) -> Array:
    """The integers in the case's dtype, as words. A complex number's imaginary part is twice its real one."""
    dtype = case.dtype
    kind, _ = words(dtype.itemsize)
    if dtype.storage is not None:  # NumPy does not have the dtype
        bits = np.empty(values.size, storage(dtype))
        narrow(values.astype(np.float32), bits, dtype)
        return bits.view(kind)
    array = values.astype(storage(dtype))
    if dtype.kind == "c" and not (case.reduction is not None and case.reduction.combine == "PROD"):
        array.imag = 2 * values
    return array.view(kind)
