"""Direct algorithms. Every block goes straight from the rank that has it to those that need it, at once or in pairs."""

from __future__ import annotations

from mpicoll.algorithms.algorithm import Algorithm
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Copy, Place, Recv, RecvReduce, Send, Space, Steps, one, run


def bcast(at: Place) -> Steps:
    """The root sends to every other rank.

    Cost: (p-1)(a + n b)
    Source: Pješivac-Grbović and others, Performance analysis of MPI collective operations, Cluster Computing 10 (2007)
    """
    if at.shifted:
        yield (Recv(at.root, one(0), OUTPUT),)
    else:
        yield tuple(Send(at.actual(i), one(0), OUTPUT) for i in range(1, at.size))


def reduce(at: Place) -> Steps:
    """The root receives the vectors of the other ranks and combines all in rank order: ((0 + 1) + 2) + ...

    Rank 0 combines the vectors of the ranks below the root, and sends the root the result.

    Cost: (p-1)(a + n b + n g)
    Source: Pješivac-Grbović and others, Performance analysis of MPI collective operations, Cluster Computing 10 (2007)
    """
    rank, root = at.rank, at.root
    taken = [*range(1, root)] if rank == 0 else []
    if rank == root:
        taken = [*range(min(root, 1)), *range(root + 1, at.size)]
    into: Space = SCRATCH if rank < root else OUTPUT
    mine: Space = INPUT
    for peer in taken:
        yield (RecvReduce(peer, one(0), mine, into, mine_first=rank < peer),)
        mine = into
    if rank != root:
        yield (Send(0 if 0 < rank < root else root, one(0), mine),)


def allreduce(at: Place) -> Steps:
    """Rank 0 receives every other rank's vector, combines all in rank order, and sends the result to all ranks.

    Cost: 2(p-1)(a + n b) + (p-1) n g
    Source: Pješivac-Grbović and others, Performance analysis of MPI collective operations, Cluster Computing 10 (2007)
    """
    yield from reduce(at)
    yield from bcast(at)


def reduce_scatter(at: Place) -> Steps:
    """Every rank receives its block from the ranks after it, and combines all in rank order: ((0 + 1) + 2) + ...

    The ranks before it combine theirs on a chain from rank 0 up. Each rank sends the next one the blocks of all ranks
    above, and each rank below its block.

    Cost: 2(p-1) a + (p-1)/2 (n b + n g) + n/p b + n/p g
    Source: MPI Forum, MPI: A Message-Passing Interface Standard (1994), which recommends that reductions are made in
      the order of the ranks"""
    rank, size, mine = at.rank, at.size, one(at.rank)
    below: Space = SCRATCH if rank else INPUT
    if rank:
        adds = [RecvReduce(rank - 1, mine, INPUT, OUTPUT, mine_first=False)]
        if rank + 1 < size:
            adds.append(RecvReduce(rank - 1, run(rank + 1, size), INPUT, below, mine_first=False))
        yield tuple(adds)
    sends = [Send(peer, one(peer), INPUT) for peer in range(rank)]
    if rank + 1 < size:
        sends.append(Send(rank + 1, one(rank + 1), below))
    if rank + 2 < size:
        sends.append(Send(rank + 1, run(rank + 2, size), below))
    yield tuple(sends)
    for peer in range(rank + 1, size):
        first: Space = OUTPUT if rank or peer > rank + 1 else INPUT
        yield (RecvReduce(peer, mine, first, OUTPUT, mine_first=True),)


def gather(at: Place) -> Steps:
    """Every rank sends its block to the root.

    Cost: (p-1) a + (p-1)/p n b
    Source: MPI Forum, MPI: A Message-Passing Interface Standard (1994), which defines gather by these messages"""
    if at.shifted:
        yield (Send(at.root, one(at.rank), INPUT),)
    else:
        others = (at.actual(i) for i in range(1, at.size))
        yield (Copy(one(at.rank), INPUT, OUTPUT), *(Recv(peer, one(peer), OUTPUT) for peer in others))


def scatter(at: Place) -> Steps:
    """The root sends every rank its block.

    Cost: (p-1) a + (p-1)/p n b
    Source: MPI Forum, MPI: A Message-Passing Interface Standard (1994), which defines scatter by these messages"""
    if at.shifted:
        yield (Recv(at.root, one(at.rank), OUTPUT),)
    else:
        others = (at.actual(i) for i in range(1, at.size))
        yield (Copy(one(at.rank), INPUT, OUTPUT), *(Send(peer, one(peer), INPUT) for peer in others))


def allgather(at: Place) -> Steps:
    """Every rank sends its block to every other rank, the next rank first.

    Cost: (p-1) a + (p-1)/p n b
    Source: MPI Forum, MPI: A Message-Passing Interface Standard (1994), which defines allgather as a gather to every
      rank"""
    yield (Copy(one(at.rank), INPUT, OUTPUT),)
    after, before = _others(at)
    yield (*(Recv(peer, one(peer), OUTPUT) for peer in before), *(Send(peer, one(at.rank), OUTPUT) for peer in after))


def alltoall(at: Place) -> Steps:
    """Every rank sends every other rank its block, the next rank first, so that not all begin with the same one.

    Cost: (p-1) a + (p-1)/p n b
    Source: Thakur and others, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"""
    after, before = _others(at)
    yield (
        Copy(one(at.rank), INPUT, OUTPUT),
        *(Recv(peer, one(peer), OUTPUT) for peer in before),
        *(Send(peer, one(peer), INPUT) for peer in after),
    )


def _others(at: Place) -> tuple[list[int], list[int]]:
    """The other ranks, counted up from this one and counted down. Every rank's i-th send meets an i-th receive."""
    distances = range(1, at.size)
    return [(at.rank + i) % at.size for i in distances], [(at.rank - i) % at.size for i in distances]


def pairwise_reduce_scatter(at: Place) -> Steps:
    """In step k, each rank sends the rank k after it that rank's block, and adds the block that it receives to its own.

    Cost: (p-1) a + (p-1)/p n b + (p-1)/p n g
    Source: Thakur and others, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"""
    mine: Space = INPUT
    for step in range(1, at.size):
        after, before = (at.rank + step) % at.size, (at.rank - step) % at.size
        yield (Send(after, one(after), INPUT), RecvReduce(before, one(at.rank), mine, OUTPUT, mine_first=False))
        mine = OUTPUT


def pairwise_alltoall(at: Place) -> Steps:
    """In step k, each rank sends to the rank k after it and receives from the rank k before it.

    Cost: (p-1) a + (p-1)/p n b
    Source: Thakur and others, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"""
    yield (Copy(one(at.rank), INPUT, OUTPUT),)
    for step in range(1, at.size):
        after, before = (at.rank + step) % at.size, (at.rank - step) % at.size
        yield (Send(after, one(after), INPUT), Recv(before, one(before), OUTPUT))


ALGORITHMS = (
    Algorithm("bcast", "linear", bcast),
    Algorithm("reduce", "linear", reduce),
    Algorithm("allreduce", "linear", allreduce),
    Algorithm("gather", "linear", gather, uneven=True),
    Algorithm("allgather", "linear", allgather, uneven=True),
    Algorithm("scatter", "linear", scatter, uneven=True),
    Algorithm("reduce_scatter", "linear", reduce_scatter, uneven=True),
    Algorithm("reduce_scatter", "pairwise", pairwise_reduce_scatter, uneven=True),
    Algorithm("alltoall", "linear", alltoall, uneven=True),
    Algorithm("alltoall", "pairwise", pairwise_alltoall, uneven=True),
)
