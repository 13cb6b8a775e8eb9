"""Cases: sizes are counted as in nccl-tests, each rank has the buffers that its case needs, and their contents are
exact in every dtype and any order, and different from position to position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.arrays.dtypes import DTYPES, OPS
from mpicoll.arrays.kernels import COMBINE, storage
from mpicoll.bench.cases import Case, Placement, elements, expected, given, wrong
from mpicoll.bench.memory import POISON, Arena
from mpicoll.errors import DtypeError
from tests import oracle

LEGAL = []
for dtype in DTYPES.values():
    for op in OPS:
        try:
            if op != "premul_sum" and Case(COLLECTIVES["allreduce"], 1, dtype, op, 0, 0, 1, "in-place").reduction:
                LEGAL.append((dtype.name, op))
        except DtypeError:
            pass


def case(collective: str = "allreduce", count: int = 3000, rank: int = 0, ranks: int = 3, **other: Any) -> Case:
    dtype = DTYPES[other.pop("dtype", "float32")]
    return Case(
        COLLECTIVES[collective], count, dtype, other.pop("op", "sum"), other.pop("root", 0), rank, ranks, "out-of-place"
    )


def decoded(bits: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(storage(DTYPES[dtype]))


def divided(values: Any, n: int, dtype: str) -> Any:
    """Real and imaginary parts are divided one by one: NumPy's division of complex numbers rounds several times."""
    if values.dtype.kind == "c":
        return (values.view(values.real.dtype) / n).view(values.dtype)
    if values.dtype.kind in "iu":
        return np.array([int(math.fabs(v) // n * math.copysign(1, v)) for v in values.tolist()], values.dtype)
    return oracle.rounded(values / n, dtype)


def inputs_of(dtype: str, op: str, ranks: int) -> list[Any]:
    return [decoded(given(case(rank=r, ranks=ranks, dtype=dtype, op=op)), dtype) for r in range(ranks)]


def reduced(inputs: Sequence[Any], dtype: str, op: str, ranks: int) -> Any:
    """The reduction of the inputs, with a rounding after every step."""
    reduction = case(dtype=dtype, op=op).reduction
    assert reduction is not None
    found = reduce(lambda a, b: oracle.rounded(COMBINE[reduction.combine](a, b), dtype), inputs)
    return divided(found, ranks, dtype) if reduction.averages else found


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "op"), LEGAL)
def test_the_result_is_exact_in_any_order(dtype: str, op: str) -> None:
    for ranks in (1, 3, 4, 7, 33, 100):
        inputs = inputs_of(dtype, op, ranks)
        blocks = expected(case(ranks=ranks, dtype=dtype, op=op))
        assert blocks is not None
        for order in (inputs, inputs[::-1]):
            np.testing.assert_array_equal(reduced(order, dtype, op, ranks), decoded(blocks[0], dtype))


@pytest.mark.parametrize(("dtype", "op"), LEGAL)
def test_a_missing_rank_is_seen(dtype: str, op: str) -> None:
    for ranks in (2, 5):
        inputs = inputs_of(dtype, op, ranks)
        blocks = expected(case(ranks=ranks, dtype=dtype, op=op))
        assert blocks is not None
        for missing in range(ranks):
            rest = inputs[:missing] + inputs[missing + 1 :]
            assert not np.array_equal(reduced(rest, dtype, op, ranks), decoded(blocks[0], dtype))


@pytest.mark.parametrize("collective", ["allgather", "gather", "alltoall", "scatter", "reduce_scatter"])
@pytest.mark.parametrize("count", [1009, 1024, 1009 * 1013])
def test_a_block_in_another_place_is_seen(collective: str, count: int) -> None:
    """Even if the length of a block is a multiple of the first period that is tried."""
    blocks = [b for r in range(3) for b in expected(case(collective, count, rank=r)) or []]
    for i, one in enumerate(blocks):
        for other in blocks[i + 1 :]:
            same = collective in ("allgather",) and np.array_equal(one, other)
            assert same or wrong(one, [other]) > len(one) // 10


@pytest.mark.parametrize(
    ("collective", "ranks_with_one"), [("gather", [1]), ("reduce", [1]), ("exscan", [1, 2]), ("allreduce", [0, 1, 2])]
)
def test_who_has_a_result(collective: str, ranks_with_one: list[int]) -> None:
    found = [r for r in range(3) if expected(case(collective, rank=r, root=1)) is not None]
    assert found == ranks_with_one


# -- buffers --------------------------------------------------------------------------------------------------------


def placed(name: str, placement: Placement, rank: int = 1, ranks: int = 3, count: int = 2000) -> Case:
    return Case(COLLECTIVES[name], count, DTYPES["float32"], "sum", 1, rank, ranks, placement)


@pytest.mark.parametrize(
    ("name", "nbytes", "dtype", "ranks", "count"),
    [
        *((name, 1024, "float32", 4, 64) for name in ("allgather", "reduce_scatter", "gather", "scatter", "alltoall")),
        *((name, 1024, "float32", 4, 256) for name in ("allreduce", "bcast", "reduce", "scan")),
        ("alltoall", 8, "float64", 5, 1),  # a block is never empty
        ("barrier", 1024, "float64", 5, 0),
    ],
)
def test_the_size_is_of_all_blocks_together(name: str, nbytes: int, dtype: str, ranks: int, count: int) -> None:
    assert elements(COLLECTIVES[name], nbytes, DTYPES[dtype], ranks) == count
    assert count < 2 or placed(name, "out-of-place", ranks=ranks, count=count).bytes == nbytes


def test_pairs_share_no_memory() -> None:
    c = placed("allgather", "out-of-place")
    pairs = Arena().buffers(c)
    assert len(pairs) > 1
    parts = [part for buffers in pairs for part in (buffers.x, buffers.out) if part is not None]
    for i, part in enumerate(parts):
        assert not any(np.shares_memory(part, other) for other in parts[i + 1 :])
        part.fill(POISON)
