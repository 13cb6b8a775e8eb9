"""Algorithms on a ring or a chain: each rank talks only to the rank before it and to the rank after it.

On a ring, most send to the next rank and receive from the one before, one block at a time. Every rank sends and
receives the fewest bytes that any algorithm can, and all links work all the time. The price is a number of steps that
grows with the number of ranks. On a chain, the vector passes through all ranks one after another, in segments."""

from __future__ import annotations

from mpicoll.algorithms.algorithm import Algorithm
from mpicoll.algorithms.butterfly import Fold

from mpicoll.algorithms.steps import (  # isort: skip
    INPUT, OUTPUT, SCRATCH, Copy, Pipeline, Place, Recv, RecvReduce, Send, Space, Stage, Steps, one, per_rank,
    segments, segments_per_rank,
)  # fmt: skip


def allreduce(at: Place) -> Steps:
    """A ring reduce-scatter, then a ring all-gather of the blocks.

    Cost: 2(p-1) a + 2(p-1)/p n b + (p-1)/p n g
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69 (2009)"""
    yield from reduce_scatter(at, on_the_way=OUTPUT)
    yield from _allgather(at)


def segmented_allreduce(at: Place) -> Steps:
    """The ring all-reduce, with each rank's block cut into segments. Each segment is reduced while it is in the cache.

    Cost: 2(p-1)s a + 2(p-1)/p n b + (p-1)/p n g
    Source: Open MPI's coll/tuned, allreduce ring_segmented"""
    yield from reduce_scatter(at, at.segments, OUTPUT)
    yield from _allgather(at, at.segments)


def reduce_scatter(at: Place, parts: int = 1, on_the_way: Space = SCRATCH) -> Steps:
    """Each block travels once around the ring, and every rank adds its own on the way. The block ends at its owner.

    The ``parts`` of a block, its segments, follow each other by a step.

    Cost: (p-1) a + (p-1)/p n b + (p-1)/p n g
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69 (2009)"""
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


def allgather(at: Place) -> Steps:
    """Each block travels once around the ring.

    Cost: (p-1) a + (p-1)/p n b
    Source: Thakur and others, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"""
    yield (Copy(one(at.rank), INPUT, OUTPUT),)
    yield from _allgather(at)


def _allgather(at: Place, parts: int = 1) -> Steps:
    """Begin with block ``rank`` in OUTPUT."""
    rank, size = at.rank, at.size
    for step in range(size - 1):
        for part in range(parts):
            sent, taken = ((rank - step - k) % size * parts + part for k in (0, 1))
            yield (Send((rank + 1) % size, one(sent), OUTPUT), Recv((rank - 1) % size, one(taken), OUTPUT))


def neighbour_exchange_allgather(at: Place) -> Steps:
    """Pairs of neighbours exchange their blocks. Then each passes on what came last, to its two neighbours in turn.

    Cost: p/2 a + (p-1)/p n b; where p is odd, 2 a + n b more
    Source: Chen and others, Performance evaluation of allgather algorithms on terascale Linux cluster with Fast
      Ethernet, HPC-Asia (2005)"""
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


def chain_bcast(at: Place) -> Steps:
    """The root sends to the next rank, that rank to its next, and so on. Segments follow each other one step apart.

    Cost: (p+s-2)(a + n/s b)
    Source: Pješivac-Grbović and others, Performance analysis of MPI collective operations, Cluster Computing 10 (2007)
    """
    return Pipeline(_down_chain(at, at.shifted, 1, 0), at.segments)


def chain_reduce(at: Place) -> Steps:
    """The rank after the root sends to its next rank, which adds its own vector, and so on around to the root.

    Cost: (p+s-2)(a + n/s b + n/s g)
    Source: Pješivac-Grbović and others, Performance analysis of MPI collective operations, Cluster Computing 10 (2007)
    """
    return Pipeline(_up_chain(at, SCRATCH if at.shifted else OUTPUT), at.segments)


def fixed_order_allreduce(at: Place) -> Steps:
    """A chain reduce from rank 0 up and a chain bcast back down, both at once. Every element is ((0 + 1) + 2) + ...

    The order of the additions is the same for every length and every number of segments. So the result of an element
    depends only on the ranks' values of this element.

    Cost: 2(p+s-2)(a + n/s b) + (p+s-2) n/s g
    Source: the chains of Pješivac-Grbović and others, Performance analysis of MPI collective operations, Cluster
      Computing 10 (2007)"""
    top = at._replace(root=at.size - 1)
    stages = [*_up_chain(top, OUTPUT), *_down_chain(top, top.root - at.rank, -1, at.size - 1)]
    return Pipeline(stages, at.segments)


def chain_scan(at: Place) -> Steps:
    """Each rank adds its own vector to what it receives from the rank before it, and sends the sum to the next rank.

    Cost: (p-1)(a + n b + n g)
    Source: MPI Forum, MPI: A Message-Passing Interface Standard (1994), which defines scan by these sums"""
    if at.rank == 0:
        yield (Copy(one(0), INPUT, OUTPUT),)
    else:
        yield (RecvReduce(at.rank - 1, one(0), INPUT, OUTPUT, mine_first=False),)
    if at.rank + 1 < at.size:
        yield (Send(at.rank + 1, one(0), OUTPUT),)


def chain_exscan(at: Place) -> Steps:
    """Each rank receives its result from the rank before it, adds its own vector, and sends the sum to the next rank.

    A rank receives the sum twice: to add to it, and as its result. So all ranks but the last two send it twice.

    Cost: (p-2)(a + 2 n b + n g) + a + n b
    Source: MPI Forum, MPI: A Message-Passing Interface Standard 2.0 (1997), which defines exscan by these sums"""
    rank, has_next, next_has_next = at.rank, at.rank + 1 < at.size, at.rank + 2 < at.size
    sums: Space = SCRATCH if rank else INPUT
    if rank and has_next:
        yield (RecvReduce(rank - 1, one(0), INPUT, sums, mine_first=False),)
    if rank:
        yield (Recv(rank - 1, one(0), OUTPUT),)
    if has_next:
        yield (Send(rank + 1, one(0), sums),) * (2 if next_has_next else 1)


def _down_chain(at: Place, hops: int, way: int, start: int) -> list[Stage]:
    """The stages of the rank that is ``hops`` ranks from where the chain begins, at time ``start``."""
    stages = []
    if hops:
        stages.append(Stage(start + hops - 1, Recv((at.rank - way) % at.size, one(0), OUTPUT)))
    if hops < at.size - 1:
        stages.append(Stage(start + hops, Send((at.rank + way) % at.size, one(0), OUTPUT)))
    return stages


def _up_chain(at: Place, into: Space) -> list[Stage]:
    """The stages of a reduce that begins after the root, goes up and ends at the root."""
    hops = (at.shifted - 1) % at.size
    stages = []
    if hops:
        add = RecvReduce((at.rank - 1) % at.size, one(0), INPUT, into, mine_first=False)
        stages.append(Stage(hops - 1, add))
    if at.shifted:
        stages.append(Stage(hops, Send((at.rank + 1) % at.size, one(0), into if hops else INPUT)))
    return stages


ALGORITHMS = (
    Algorithm("bcast", "chain", chain_bcast, segments, segment=1 << 18),
    Algorithm("reduce", "chain", chain_reduce, segments, segment=1 << 18),
    Algorithm("allreduce", "fixed_order", fixed_order_allreduce, segments, segment=1 << 18),
    Algorithm("allreduce", "ring", allreduce, per_rank),
    Algorithm("allreduce", "segmented_ring", segmented_allreduce, segments_per_rank, segment=1 << 20),
    Algorithm("allgather", "ring", allgather, uneven=True),
    Algorithm("allgather", "neighbour_exchange", neighbour_exchange_allgather, uneven=True),
    Algorithm("reduce_scatter", "ring", reduce_scatter, uneven=True),
    Algorithm("scan", "chain", chain_scan),
    Algorithm("exscan", "chain", chain_exscan),
)
