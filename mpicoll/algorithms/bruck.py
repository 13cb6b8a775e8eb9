"""Bruck's algorithms. Step k connects ranks at distance 2^k around a ring, for any number of ranks."""

from __future__ import annotations

from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Blocks, Copy, Place, Recv, Send, Steps, one, run


def allgather(at: Place) -> Steps:
    """In the step at distance d, each rank sends the d blocks that begin with its own to the rank d before it.

    Cost: log2(p) a + (p-1)/p n b
    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, Efficient algorithms for all-to-all communications in multiport
      message-passing systems, IEEE TPDS 8 (1997), without the final rotation: here a block arrives where it belongs
    """
    rank, size = at.rank, at.size
    yield (Copy(one(rank), INPUT, OUTPUT),)
    distance = 1
    while distance < size:
        before, after, several = (rank - distance) % size, (rank + distance) % size, min(distance, size - distance)
        yield (Send(before, _around(rank, several, size), OUTPUT), Recv(after, _around(after, several, size), OUTPUT))
        distance *= 2


def alltoall(at: Place) -> Steps:
    """A block for the rank r further on travels the distances 1, 2, 4, ... that are the bits of r. In each step, all
    blocks that travel the same distance are one message.

    Cost: log2(p) a + log2(p)/2 n b
    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, Efficient algorithms for all-to-all communications in multiport
      message-passing systems, IEEE TPDS 8 (1997)
    """
    rank, size = at.rank, at.size
    here, there = _around(rank, size, size), run(0, size - rank) + run(size - rank, size)
    yield (Copy(here, INPUT, SCRATCH, there),)
    distance = 1
    while distance < size:
        moved = tuple(range(b, min(b + distance, size)) for b in range(distance, size, 2 * distance))
        yield (Send((rank + distance) % size, moved, SCRATCH), Recv((rank - distance) % size, moved, OUTPUT))
        yield (Copy(moved, OUTPUT, SCRATCH),)
        distance *= 2
    came = tuple(range(b, b + 1) for b in range(size))
    of = tuple(range(b, b + 1) for b in ((rank - b) % size for b in range(size)))
    yield (Copy(came, SCRATCH, OUTPUT, of),)


def _around(start: int, several: int, size: int) -> Blocks:
    """``several`` blocks from ``start`` on, around the ring."""
    stop = start + several
    return run(start, min(stop, size)) + run(0, stop - size)
