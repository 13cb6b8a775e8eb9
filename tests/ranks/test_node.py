"""What the kernel says where ranks give what others do not expect."""

from __future__ import annotations

import numpy as np
import pytest

import mpicoll
from mpicoll.errors import MessageError


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [1, 100_000])
def test_an_alltoallv_whose_counts_differ_on_one_rank_fails_on_all(count: int, shared: bool) -> None:
    comm = mpicoll.Communicator()
    rank, size = comm.rank, comm.size
    new = comm.empty if shared else np.empty
    counts = [count] * size
    expected, said = counts, "another rank makes another call, or gives other numbers"
    if rank == 0:
        expected, said = [*counts[:-1], count + 1], f"expected {count + 1} elements from rank {size - 1}"
    xs, out = new(size * count, np.float64), new(sum(expected), np.float64)
    xs[...], out[...] = rank, -1
    with pytest.raises(MessageError, match=said):
        comm.alltoallv(xs, counts, expected, out=out)
    assert (out == -1).all(), "nothing has moved"
