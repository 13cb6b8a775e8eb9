"""Sizes are counted as in nccl-tests, and each rank has the buffers that its case needs."""

from __future__ import annotations

import numpy as np
import pytest

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.arrays.dtypes import DTYPES
from mpicoll.bench.cases import PLACEMENTS, Case, Placement, elements, expected, given, words
from mpicoll.bench.memory import POISON, Arena

ALL = [(name, p) for name, placements in PLACEMENTS.items() for p in placements]


def case(name: str, placement: Placement, rank: int = 1, ranks: int = 3, root: int = 1, count: int = 2000) -> Case:
    return Case(COLLECTIVES[name], count, DTYPES["float32"], "sum", root, rank, ranks, placement)


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter", "gather", "scatter", "alltoall"])
def test_the_size_is_of_all_blocks_together(name: str) -> None:
    count = elements(COLLECTIVES[name], 1024, DTYPES["float32"], 4)
    assert count == 64
    assert case(name, "out", ranks=4, count=count).bytes == 1024


@pytest.mark.parametrize("name", ["allreduce", "bcast", "reduce", "scan"])
def test_the_size_is_of_the_vector(name: str) -> None:
    assert elements(COLLECTIVES[name], 1024, DTYPES["float32"], 4) == 256


def test_a_block_is_never_empty() -> None:
    assert elements(COLLECTIVES["alltoall"], 8, DTYPES["float64"], 5) == 1


def test_a_barrier_has_no_size() -> None:
    assert elements(COLLECTIVES["barrier"], 1024, DTYPES["float64"], 5) == 0


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("name", "placement"), ALL)
def test_buffers_are_rewritten(name: str, placement: Placement, rank: int) -> None:
    """A rewrite restores the input. If a call then does nothing, its result is wrong."""
    c = case(name, placement, rank)
    for buffers in Arena().buffers(c):
        for part in (buffers.x, buffers.out):
            if part is not None:
                part.fill(1)
        buffers.rewrite()
        kind, _ = words(4)
        if buffers.x is not None and (name != "bcast" or c.at_root) and c.collective.moves:
            assert np.array_equal(buffers.x.view(kind), np.resize(given(c), buffers.x.size // 4))
        right = expected(c)
        if right is None or (name == "bcast" and c.at_root) or (name == "scan" and rank == 0):
            continue  # this rank has nothing to do
        blocks = buffers.result().reshape(len(right), -1)
        wrong = [not np.array_equal(b, np.resize(r, b.size)) for b, r in zip(blocks, right, strict=True)]
        # In place, a rank's own block is right from the start.
        own = {"gather": rank, "allgather": rank, "scatter": 0 if c.at_root else None}.get(name) if c.in_place else None
        assert wrong == [i != own for i in range(len(right))]


@pytest.mark.parametrize("name", ["allgather", "gather", "reduce_scatter", "scatter"])
def test_in_place_means_the_ranks_own_block(name: str) -> None:
    c = case(name, "in")
    buffers = Arena().buffers(c)[0]
    x, out = buffers.numpy()
    large, small = (x, out) if COLLECTIVES[name].gives == "p" else (out, x)
    assert large.shape == (3, 2000)
    assert small.ctypes.data == large[c.rank].ctypes.data


@pytest.mark.parametrize("name", ["allreduce", "reduce", "bcast", "scan", "exscan"])
def test_in_place_means_the_same_memory(name: str) -> None:
    c = case(name, "in")
    x, out = Arena().buffers(c)[0].numpy()
    assert x.ctypes.data == out.ctypes.data


def test_pairs_share_no_memory() -> None:
    c = case("allgather", "out")
    pairs = Arena().buffers(c)
    assert len(pairs) > 1
    parts = [part for buffers in pairs for part in (buffers.x, buffers.out) if part is not None]
    for i, part in enumerate(parts):
        assert not any(np.shares_memory(part, other) for other in parts[i + 1 :])
        part.fill(POISON)


def test_a_rank_without_a_part_has_none() -> None:
    c = case("scatter", "out", rank=0)
    assert Arena().buffers(c)[0].numpy()[0] is None
    c = case("gather", "out", rank=0)
    assert Arena().buffers(c)[0].numpy()[1] is None
