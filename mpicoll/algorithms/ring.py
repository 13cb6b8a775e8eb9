"""Algorithms on a ring, on which each rank talks only to the rank before it and to the rank after it.

Most send to the next rank and receive from the one before, one block at a time. Every rank sends and receives the
fewest bytes that any algorithm can, and all links work all the time. The price is a number of steps that grows with the
number of ranks.
"""

from __future__ import annotations

from mpicoll.algorithms.butterfly import Fold
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Copy, Place, Recv, RecvReduce, Send, Space, Steps, one


def allreduce(at: Place) -> Steps:
    """A ring reduce-scatter, then a ring all-gather of the blocks.

    Cost: 2(p-1) a + 2(p-1)/p n b + (p-1)/p n g
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69 (2009)
    """
    yield from _reduce_scatter(at, 1, OUTPUT)
    yield from _allgather(at, 1)


def segmented_allreduce(at: Place) -> Steps:
    """The ring all-reduce, with each rank's block cut into segments. Each segment is reduced while it is in the cache.

    Cost: 2(p-1)s a + 2(p-1)/p n b + (p-1)/p n g
    Source: Open MPI's coll/tuned, allreduce ring_segmented
    """
    yield from _reduce_scatter(at, at.segments, OUTPUT)
    yield from _allgather(at, at.segments)


def reduce_scatter(at: Place) -> Steps:
    """Each block travels once around the ring, and every rank adds its own on the way. The block ends at its owner.

    Cost: (p-1) a + (p-1)/p n b + (p-1)/p n g
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69 (2009)
    """
    yield from _reduce_scatter(at, 1, SCRATCH)


def allgather(at: Place) -> Steps:
    """Each block travels once around the ring.

    Cost: (p-1) a + (p-1)/p n b
    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
      IJHPCA 19 (2005)
    """
    yield (Copy(one(at.rank), INPUT, OUTPUT),)
    yield from _allgather(at, 1)


def _reduce_scatter(at: Place, parts: int, on_the_way: Space) -> Steps:
    """End with block ``rank`` complete in OUTPUT. The ``parts`` segments of a block follow each other by a step."""
    rank, size = at.rank, at.size
    for step in range(size - 1):
        from_ = INPUT if step == 0 else on_the_way
        into = OUTPUT if step == size - 2 else on_the_way
        for part in range(parts):
            sent, taken = ((rank - step - k) % size * parts + part for k in (1, 2))
            yield (
                Send((rank + 1) % size, one(sent), from_),
                RecvReduce((rank - 1) % size, one(taken), INPUT, into, mine_first=False),
            )


def _allgather(at: Place, parts: int) -> Steps:
    """Begin with block ``rank`` in OUTPUT."""
    rank, size = at.rank, at.size
    for step in range(size - 1):
        for part in range(parts):
            sent, taken = ((rank - step - k) % size * parts + part for k in (0, 1))
            yield (Send((rank + 1) % size, one(sent), OUTPUT), Recv((rank - 1) % size, one(taken), OUTPUT))


def neighbour_exchange_allgather(at: Place) -> Steps:
    """Pairs of neighbours exchange their blocks. Then each passes on what came last, to its two neighbours in turn.

    Cost: p/2 a + (p-1)/p n b; where p is odd, 2 a + n b more
    Source: Chen, Zhang, Zhang and Yuan, Performance evaluation of allgather algorithms on terascale Linux cluster with
      Fast Ethernet, HPC-Asia (2005)
    """
    members = at.size & -2
    fold = Fold(at, members)
    return fold.allgather(_exchange(fold, members))


def _exchange(fold: Fold, members: int) -> Steps:
    me, pairs = fold.member, members // 2
    side = -1 if me % 2 else 1  # where the other rank of the pair is
    peer = fold.rank(me + side)
    yield (Send(peer, fold.blocks(me, me + 1), OUTPUT), Recv(peer, fold.blocks(me + side, me + side + 1), OUTPUT))
    last = pair = me // 2
    for step in range(1, pairs):
        side = -side
        came = (pair + side * ((step + 1) // 2)) % pairs
        peer = fold.rank((me + side) % members)
        yield (
            Send(peer, fold.blocks(2 * last, 2 * last + 2), OUTPUT),
            Recv(peer, fold.blocks(2 * came, 2 * came + 2), OUTPUT),
        )
        last = came
