"""Collectives among neighbours, beside MPI's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicoll
from mpicoll.errors import ArgumentError, DtypeError, MessageError, StateError
from tests.sharing import NEEDS_SHARED

pytestmark = pytest.mark.sizes(1, 2, 4)


def line(n: int, rank: int) -> MPI.Topocomm:
    return MPI.COMM_WORLD.Create_cart([n], periods=[False])


def ring(n: int, rank: int) -> MPI.Topocomm:
    """Of two ranks, each is both neighbours of the other one."""
    return MPI.COMM_WORLD.Create_cart([n], periods=[True])


def alone_in_two_dimensions(n: int, rank: int) -> MPI.Topocomm:
    return MPI.COMM_WORLD.Create_cart([1, n, 1], periods=[True, True, True])


def edges_of_one_pair(n: int, rank: int) -> MPI.Topocomm:
    before, after = (rank - 1) % n, (rank + 1) % n
    return MPI.COMM_WORLD.Create_dist_graph_adjacent([before, before, rank], [after, after, rank])


def no_neighbours(n: int, rank: int) -> MPI.Topocomm:
    return MPI.COMM_WORLD.Create_dist_graph_adjacent([], [])


@pytest.mark.parametrize("made", [line, ring, alone_in_two_dimensions, edges_of_one_pair, no_neighbours])
def test_the_same_as_mpi(comm: mpicoll.Communicator, made: Callable[[int, int], MPI.Topocomm]) -> None:
    mpis = made(comm.size, comm.rank)
    ours = mpicoll.Communicator(mpis)
    sources, destinations = mpis.inoutedges
    for block in (1, 700, 30_000):  # short messages, one that takes more than one line, and pieces
        xs = comm.rank + np.arange(float(len(destinations) * block)).reshape(-1, block) / 1e6
        x = np.full(block, comm.rank + 0.5)
        expected, out = np.full((2, len(sources), block), -1.0)
        for _ in range(3):
            if destinations:  # mpi4py divides a length by the neighbours
                mpis.Neighbor_alltoall(xs, expected)
            assert ours.neighbor_alltoall(xs, out=out) is out
            assert (out == expected).all()
            if destinations:
                mpis.Neighbor_allgather(x, expected)
            ours.neighbor_allgather(x, out=out)
            assert (out == expected).all()
            out[:] = expected[:] = -1
    ours.free()
    mpis.Free()


def test_arrays_and_topologies_of_other_kinds(comm: mpicoll.Communicator) -> None:
    mpis = line(comm.size, comm.rank)
    ours, before, after, wide = mpicoll.Communicator(mpis), comm.rank - 1, comm.rank + 1, np.full((2, 6), 7.0)
    for turn in range(3):  # with gaps: it is written where a neighbour is
        x = np.full((3, 2), comm.rank + 10.0 * turn)[:, 1]
        assert ours.neighbor_allgather(x, out=wide[:, ::2]).base is not None
        for row, neighbour in zip(wide, (before, after), strict=True):
            there = neighbour + 10.0 * turn if 0 <= neighbour < comm.size else 7.0
            assert row.tolist() == [there, 7.0] * 3
    tensor = ours.neighbor_allgather(torch.full((2, 3), comm.rank + 1.0)[:, ::2])
    assert tensor.shape == (2, 2, 2)
    assert [block.unique().tolist() for block in tensor] == [[before + 1], [after + 1 if after < comm.size else 0]]
    ends = [] if comm.rank else [*range(1, comm.size)]
    # Rank 0 sends to all others, and nobody to rank 0.
    star = mpicoll.Communicator(MPI.COMM_WORLD.Create_dist_graph_adjacent([0] if comm.rank else [], ends))
    found = star.neighbor_alltoall(np.arange(2.0 * len(ends)).reshape(-1, 2))
    assert found.tolist() == ([[2.0 * comm.rank - 2, 2.0 * comm.rank - 1]] if comm.rank else [])
    with pytest.raises(ArgumentError, match="neighbor_alltoall: xs: expected shape"):
        ours.neighbor_alltoall(np.ones(3))
    xs, ys = np.ones(8).reshape(2, 2, 2), np.ones(8)
    ours.neighbor_alltoall(xs, out=ys)
    with pytest.raises(ArgumentError, match="neighbor_alltoall: xs: expected shape"):
        ours.neighbor_alltoall(xs.reshape(4, 2), out=ys)  # the same memory
    with pytest.raises(DtypeError, match="neighbor_allgather: out: expected dtype float64"):
        ours.neighbor_allgather(np.ones(3), out=np.ones((2, 3), np.float32))
    with pytest.raises(StateError, match="neighbor_allgather: this communicator has no neighbours"):
        comm.neighbor_allgather(np.ones(3))
    ours.free()
    mpis.Free()


@NEEDS_SHARED  # elsewhere MPI says what it likes
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("blocks", [(3, 4), (40_000, 3), (3, 40_000)])
def test_a_block_of_another_length_is_an_error(comm: mpicoll.Communicator, blocks: tuple[int, int]) -> None:
    """Where a Communicator compares the ranks' calls, the job ends."""
    block = blocks[comm.rank % 2]
    ours = mpicoll.Communicator(line(comm.size, comm.rank), check="off")
    expected = f"neighbor_allgather: expected {block} elements of float64 from rank {comm.rank - 1 if comm.rank else 1}"
    with pytest.raises(MessageError, match=expected):
        ours.neighbor_allgather(np.ones(block))
    comm.barrier()
