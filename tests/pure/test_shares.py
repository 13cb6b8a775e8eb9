"""What each rank copies where the arrays of a gather, scatter or broadcast lie in memory that the ranks share."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from mpicoll.calls.call import checked
from mpicoll.calls.plan import Workspace
from mpicoll.fabrics.routes.shares import CACHED, LINE, share_of
from mpicoll.fabrics.transports.transport import Array

BYTES = 1 << 18
LENGTHS = {"gather": (1, 4), "scatter": (4, 1), "bcast": (4, 0)}
"""Of ``x`` and ``out``, in blocks of so many bytes."""


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("operation", ["gather", "scatter", "bcast"])
def test_all_ranks_copy_as_much(operation: str, root: int, in_place: bool) -> None:
    """The root copies its own block too, if that is not there already. It helps the others with the rest."""
    size = 4
    whole = np.random.default_rng(1).integers(0, 255, size * BYTES, np.uint8)
    blocks = np.split(whole, size)
    inputs: list[Array | None] = [None] * size
    outputs: list[Array | None] = [None] * size
    mine = slice(root * BYTES, (root + 1) * BYTES)
    of_root = whole.copy() if operation != "gather" else np.zeros_like(whole)
    if operation == "gather":
        inputs, outputs[root] = [block.copy() for block in blocks], of_root
        if in_place:
            of_root[mine] = blocks[root]
            inputs[root] = of_root[mine]
    else:
        inputs[root] = of_root
        outputs = [np.zeros(BYTES if operation == "scatter" else whole.size, np.uint8) for _ in range(size)]
        outputs[root] = None if operation == "bcast" else of_root[mine] if in_place else outputs[root]
    copied = []
    for rank in range(size):
        x, out = (None if n == 0 else np.zeros(n * BYTES, np.uint8) for n in LENGTHS[operation])
        call = checked(operation, rank, size, x, out, None, root, None, None)
        copied.append(0)
        for step in share_of(call, rank, inputs, outputs, Workspace()):
            assert isinstance(step, partial)
            copied[rank] += step.args[0].nbytes
            step()
    for rank, out in enumerate(outputs):
        if out is not None:
            np.testing.assert_array_equal(out, blocks[rank] if operation == "scatter" else whole)
    moved = whole.size * (size - 1) if operation == "bcast" else whole.size - BYTES * in_place
    assert sum(copied) == moved
    assert max(copied) - min(copied) <= size * LINE


@pytest.mark.parametrize("rank", range(3))
def test_a_rank_without_a_block_has_no_memory(rank: int) -> None:
    whole = np.arange(3 * BYTES // 2, dtype=np.int16).view(np.uint8)
    counts = (0, BYTES, 2 * BYTES)
    inputs: list[Array | None] = [None, whole[:BYTES], whole[BYTES:]]
    outputs: list[Array | None] = [None, np.zeros_like(whole), None]
    x, out = np.zeros(counts[rank], np.uint8), np.zeros_like(whole) if rank == 1 else None
    call = checked("gatherv", rank, 3, x, out, None, 1, None, counts)
    for step in share_of(call, rank, inputs, outputs, Workspace()):
        step()
    [_, gathered, _] = outputs
    assert gathered is not None
    own = {0: slice(0), 1: slice(BYTES), 2: slice(BYTES, None)}[rank]
    np.testing.assert_array_equal(gathered[own], whole[own])


def test_the_root_of_a_short_scatter_helps_with_other_blocks() -> None:
    """What it has just written lies in its cache."""
    whole = np.arange(CACHED, dtype=np.uint8)
    outputs: list[Array | None] = [np.zeros(CACHED // 2, np.uint8) for _ in range(2)]
    copied = []
    for rank in range(2):
        call = checked("scatter", rank, 2, whole, np.zeros(CACHED // 2, np.uint8), None, 0, None, None)
        steps = share_of(call, rank, [whole, None], outputs, Workspace())
        copied.append(sum(step.args[0].nbytes for step in steps if isinstance(step, partial)))
    assert copied == [CACHED * 3 // 4, CACHED // 4]
