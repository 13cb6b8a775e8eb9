"""Algorithms at Bruck's distances. Step k connects ranks at distance 2^k around a ring, for any number of ranks.

Parallel aggregated trees (PAT) use these distances in reverse, so that the long messages go to near ranks. Each rank's
block travels on its own binomial tree, the longest distance first. Blocks that a rank sends at the same time over the
same distance are one message."""

from __future__ import annotations

from collections.abc import Iterator

from mpicoll.algorithms.algorithm import Algorithm

from mpicoll.algorithms.steps import (  # isort: skip
    INPUT, OUTPUT, SCRATCH, Blocks, Copy, Place, Recv, RecvReduce, Send, Steps, around, merged, one, run, singly,
)  # fmt: skip


def allgather(at: Place) -> Steps:
    """In the step at distance d, each rank sends the d blocks that begin with its own to the rank d before it.

    Cost: log2(p) a + (p-1)/p n b
    Source: Bruck and others, Efficient algorithms for all-to-all communications in multiport message-passing systems,
      IEEE TPDS 8 (1997), without the final rotation: here a block arrives where it belongs"""
    rank, size = at.rank, at.size
    yield (Copy(one(rank), INPUT, OUTPUT),)
    distance = 1
    while distance < size:
        before, after, several = (rank - distance) % size, (rank + distance) % size, min(distance, size - distance)
        yield (Send(before, around(rank, several, size), OUTPUT), Recv(after, around(after, several, size), OUTPUT))
        distance *= 2


def alltoall(at: Place) -> Steps:
    """A block for the rank r further on travels the distances 1, 2, 4, ... that are the bits of r. In each step, all
    blocks that travel the same distance are one message.

    Cost: log2(p) a + log2(p)/2 n b
    Source: Bruck and others, Efficient algorithms for all-to-all communications in multiport message-passing systems,
      IEEE TPDS 8 (1997)"""
    rank, size = at.rank, at.size
    here, there = around(rank, size, size), run(0, size - rank) + run(size - rank, size)
    yield (Copy(here, INPUT, SCRATCH, there),)
    distance = 1
    while distance < size:
        moved = tuple(range(b, min(b + distance, size)) for b in range(distance, size, 2 * distance))
        yield (Send((rank + distance) % size, moved, SCRATCH), Recv((rank - distance) % size, moved, OUTPUT))
        yield (Copy(moved, OUTPUT, SCRATCH),)
        distance *= 2
    yield (Copy(singly(range(size)), SCRATCH, OUTPUT, singly((rank - b) % size for b in range(size))),)


def dissemination_barrier(at: Place) -> Steps:
    """In step k, each rank signals to the rank 2^k after it, and waits for the signal of the rank 2^k before it.

    Cost: log2(p) a
    Source: Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, IJPP 17 (1988)"""
    distance = 1
    while distance < at.size:
        after, before = (at.rank + distance) % at.size, (at.rank - distance) % at.size
        yield (Send(after, (), SCRATCH), Recv(before, (), SCRATCH))
        distance *= 2


def pat_allgather(at: Place) -> Steps:
    """Each block goes on by half of the ranks, then both copies by a quarter, and so on. With s segments, a message has
    at most p/s blocks.

    With one segment, this is the paper's logarithmic variant, with one step for each distance. With more segments,
    messages to near ranks would exceed the limit. There, parts of the trees follow one after another, depth first. In
    the paper, the limit is the size of the buffers that blocks pass through. Here blocks are received where they
    belong, and the limit serves long blocks only.

    Cost: (log2(p/s) + s - 1) a + (p-1)/p n b
    Source: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, arXiv 2506.20252 (2025)
    """
    rank, size = at.rank, at.size
    yield (Copy(one(rank), INPUT, OUTPUT),)
    for distance, offsets in _pat_trees(at):
        after, before = (rank + distance) % size, (rank - distance) % size
        yield (Send(after, _blocks(rank, offsets, size), OUTPUT), Recv(before, _blocks(before, offsets, size), OUTPUT))


def pat_reduce_scatter(at: Place) -> Steps:
    """The all-gather in reverse. Each rank's block of the result is combined on its way up that rank's tree.

    The paper's algorithm does not keep a partial result of every block. This one does, so SCRATCH is as long as the
    vector.

    Cost: (log2(p/s) + s - 1) a + (p-1)/p n b + (p-1)/p n g
    Source: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, arXiv 2506.20252 (2025)
    """
    rank, size = at.rank, at.size
    if size > 2 and size % 2:  # the one block that goes further than 1 uncombined travels with combined ones
        yield (Copy(one((rank + 1) % size), INPUT, SCRATCH),)
    trees = [*_pat_trees(at)]
    for i, (distance, offsets) in enumerate(reversed(trees)):
        after, before = (rank + distance) % size, (rank - distance) % size
        mine = INPUT if distance == 1 else SCRATCH
        into = OUTPUT if i == len(trees) - 1 else SCRATCH
        yield (
            Send(before, _blocks(before, offsets, size), mine),
            RecvReduce(after, _blocks(rank, offsets, size), mine, into, mine_first=True),
        )


def _pat_trees(at: Place) -> Iterator[tuple[int, list[int]]]:
    """The steps of the all-gather: the distance, and how far each block that travels it has already come."""
    limit = -(-at.size // at.segments)

    def below(offsets: list[int], distance: int) -> Iterator[tuple[int, list[int]]]:
        if not distance:
            return
        moved = [o for o in offsets if o + distance < at.size]
        if moved:
            yield distance, moved
        further = [o + distance for o in moved]
        if len(offsets) + len(further) <= limit:
            yield from below(offsets + further, distance // 2)
        else:
            yield from below(offsets, distance // 2)
            yield from below(further, distance // 2)

    return below([0], 1 << ((at.size - 1).bit_length() - 1))


def _blocks(rank: int, offsets: list[int], size: int) -> Blocks:
    """The blocks that came to a rank over these distances."""
    return merged((rank - o) % size for o in offsets)


ALGORITHMS = (
    Algorithm("allgather", "bruck", allgather, uneven=True),
    Algorithm("allgather", "pat", pat_allgather, uneven=True, segment=1 << 16),
    Algorithm("reduce_scatter", "pat", pat_reduce_scatter, uneven=True, segment=1 << 16),
    Algorithm("alltoall", "bruck", alltoall),
    Algorithm("barrier", "dissemination", dissemination_barrier),
)
