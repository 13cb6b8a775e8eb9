"""What is measured: a collective on blocks of one length, in one placement; the contents of its input buffers, the
results that must come out, and how many elements differ from them.

Inputs are small integers, so that every result is exact in every dtype, in any order of the reduction and among any
number of ranks. A value depends on the rank and on the element's position in the rank's whole input. Along the input
the values repeat with a prime period. A block that arrives in the position of another block is therefore found out.

Only one period has to be computed, which an input and each block of a result repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mpicoll.algorithms.collectives import COLLECTIVES, Collective
from mpicoll.arrays.dtypes import Dtype, Reduction, reduction
from mpicoll.arrays.kernels import COMBINE, narrow, storage

Placement = Literal["out-of-place", "in-place"]
OUT: Placement = "out-of-place"
IN: Placement = "in-place"
PLACEMENTS: dict[str, tuple[Placement, ...]] = dict.fromkeys(COLLECTIVES, (OUT, IN)) | {
    "bcast": (IN,), "reduce": (IN, OUT), "allreduce": (IN, OUT), "alltoall": (OUT,), "barrier": (OUT,)
}  # fmt: skip
"""The placements that each collective is measured in. The first is the usual one: percentiles, ratios and pictures are
of it. It is in place where torch's own collective is, so that every backend can run it."""
Array = NDArray[Any]
Period = NDArray[np.int64]
PRIMES = (1009, 1013, 1019)
DISTINCT = 113
"""How many values there are in data that is only moved, and for minima and maxima. int8 holds all of them."""
REDUCED: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "SUM": (16, lambda gives, x: gives * (1 + x % 7)),
    "PROD": (6, lambda gives, x: 1 + gives * (x % 2)),
    "BAND": (3, lambda gives, x: 127 - gives * (1 << x % 7)),
    "BOR": (3, lambda gives, x: gives * (1 << x % 7)),
    "LAND": (2, lambda gives, x: 1 - gives * (x % 2)),
    "LOR": (2, lambda gives, x: gives * (x % 2)),
}
"""The most ranks that give another value than the neutral one at one position, and what a rank has there: of random
numbers x, if it gives one. Results then stay within int8's 127: the sum of 16 sevens does, and so does the product of
6 twos."""


def elements(collective: Collective, size: int, dtype: Dtype, ranks: int) -> int:
    """Elements of one block if the largest buffer has ``size`` bytes, which is how nccl-tests counts. Where a rank
    gives or gets a block for each rank, the largest buffer holds all of these blocks. The number is rounded down, but a
    block has at least one element."""
    if not collective.moves:
        return 0
    blocks = ranks if collective.by_rank else 1
    return max(1, size // (blocks * dtype.itemsize))


@dataclass(frozen=True)
class Case:
    """A collective on blocks of ``count`` elements, seen from one rank. So many ranks are ``sharing`` its GPU."""

    collective: Collective
    count: int
    dtype: Dtype
    op: str
    root: int
    rank: int
    ranks: int
    placement: Placement
    device: str = "cpu"
    sharing: int = 1

    @property
    def name(self) -> str:
        return self.collective.name

    @property
    def in_place(self) -> bool:
        return self.placement == IN

    @property
    def at_root(self) -> bool:
        return self.rank == self.root

    @property
    def reduction(self) -> Reduction | None:
        return reduction(self.op, self.dtype, self.name) if self.collective.reduces else None

    @property
    def block_bytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def lengths(self) -> tuple[int, int]:
        """Bytes of the input buffer and of the result buffer."""
        blocks = self.collective.given_blocks(self.ranks), self.collective.gotten_blocks(self.ranks)
        return blocks[0] * self.block_bytes, blocks[1] * self.block_bytes

    @property
    def bytes(self) -> int:
        """The size of the largest buffer. The table shows it, and bandwidths are computed from it."""
        return max(self.lengths)


def bits(dtype_size: int) -> np.dtype[Any]:
    """The type as which elements are compared: unsigned integers, if there are such long ones."""
    return np.dtype(f"u{dtype_size}" if dtype_size <= 8 else f"c{dtype_size}")


def given(case: Case) -> Array:
    """One period of this rank's input, as ``bits``. The input repeats it to its end."""
    return _stored(_values(case, case.rank, 0), case)


def expected(case: Case) -> list[Array] | None:
    """One period of each block of this rank's result, as ``bits``. None if the rank has no result.
    :meth:`Collective.outcome` says which blocks make up the result. Numbers are computed for this rank alone."""
    if not case.collective.moves:
        return None
    blocks = case.collective.given_blocks(case.ranks)
    inputs = [[[(rank, block)] for block in range(blocks)] for rank in range(case.ranks)]
    mine = case.collective.outcome(inputs, case.root, lambda blocks: [*chain(*blocks)])[case.rank]
    return None if mine is None else [_stored(_reduced(case, blocks), case) for blocks in mine]


def wrong(result: Array, periods: Sequence[Array]) -> int:
    """How many elements of ``result`` are wrong. ``result`` consists of blocks of equal length. Block i is right if it
    repeats ``periods[i]``. All arrays are flat."""
    found = 0
    for block, period in zip(result.reshape(len(periods), -1), periods, strict=True):
        whole = block.size - block.size % period.size
        found += int(np.count_nonzero(block[:whole].reshape(-1, period.size) != period))
        found += int(np.count_nonzero(block[whole:] != period[: block.size - whole]))
    return found


def _reduced(case: Case, blocks: Sequence[tuple[int, int]]) -> Period:
    """One period of what these blocks are together: each is a rank, and the number of its block."""
    periods = (_values(case, rank, block * case.count) for rank, block in blocks)
    r = case.reduction
    if r is None:
        return next(periods)
    total = reduce(COMBINE[r.combine], periods).astype(np.int64)
    if not r.averages:
        return total
    if r.dtype.kind in "iu":  # a sum of short integers wraps before it is divided
        total = total.astype(storage(r.dtype)).astype(np.int64)
    return np.asarray(np.sign(total) * (np.abs(total) // len(blocks)))


def _values(case: Case, rank: int, start: int) -> Period:
    """One period of ``rank``'s input, as integers. It begins at element ``start``."""
    prime = next((p for p in PRIMES if case.count % p), PRIMES[0])
    position = (start + np.arange(prime, dtype=np.int64)) % prime
    scattered, r = _scattered(position, rank), case.reduction
    if r is None or r.combine not in REDUCED:
        logical = case.dtype.kind == "b" or (r is not None and r.combine.startswith("L"))
        return scattered % (2 if logical else DISTINCT)
    if r.averages and case.collective.prefix:
        # The average over the ranks up to this one is then ``mean``, a small integer.
        mean, before = scattered % 4, _scattered(position, rank - 1) % 4
        return np.asarray((rank + 1) * mean - rank * before)
    most, value = REDUCED[r.combine]
    if r.averages:  # few ranks contribute, so that bfloat16 holds the sum
        most = max(1, min(case.ranks, 64 // case.ranks))
    # If there are more ranks than may contribute at one position, they take turns along the vector.
    gives = (position + rank) % -(-case.ranks // most) == 0
    if r.averages:  # multiples of the number of ranks, so that each average is whole
        return np.asarray(gives * case.ranks * (1 << scattered % 3))
    return np.asarray(value(gives, scattered))


def _scattered(position: Period, rank: int) -> Period:
    """Non-negative integers that look random. Every rank computes the same ones."""
    x = position.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64((rank + 1) * 0xD1B54A32D192ED03 % 2**64)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (x >> np.uint64(40)).astype(np.int64)


def _stored(values: Period, case: Case) -> Array:
    """The integers in the case's dtype, as ``bits``. A complex number's imaginary part is twice its real part."""
    dtype = case.dtype
    if dtype.storage is not None:  # NumPy does not have the dtype
        array = np.empty(values.size, storage(dtype))
        narrow(values.astype(np.float32), array, dtype)
        return array.view(bits(dtype.itemsize))
    array = values.astype(storage(dtype))
    if dtype.kind == "c" and not (case.reduction is not None and case.reduction.combine == "PROD"):
        array.imag = 2 * values
    return array.view(bits(dtype.itemsize))
