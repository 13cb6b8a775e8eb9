"""Algorithms on a chain. The vector passes through all ranks one after another, one segment at a time."""

from __future__ import annotations

from mpicoll.algorithms.steps import (
    INPUT,
    OUTPUT,
    SCRATCH,
    Copy,
    Pipeline,
    Place,
    Recv,
    RecvReduce,
    Send,
    Space,
    Stage,
    Steps,
    one,
)


def bcast(at: Place) -> Steps:
    """The root sends to the next rank, that rank to its next, and so on. Segments follow each other one step apart.

    Cost: (p+s-2)(a + n/s b)
    Source: Pješivac-Grbović, Angskun, Bosilca, Fagg, Gabriel and Dongarra, Performance analysis of MPI collective
      operations, Cluster Computing 10 (2007)
    """
    return Pipeline(_bcast(at, at.shifted, 1, 0), at.segments)


def reduce(at: Place) -> Steps:
    """The rank after the root sends to its next rank, which adds its own vector, and so on around to the root.

    Cost: (p+s-2)(a + n/s b + n/s g)
    Source: Pješivac-Grbović, Angskun, Bosilca, Fagg, Gabriel and Dongarra, Performance analysis of MPI collective
      operations, Cluster Computing 10 (2007)
    """
    return Pipeline(_reduce(at, SCRATCH if at.shifted else OUTPUT), at.segments)


def fixed_order_allreduce(at: Place) -> Steps:
    """A chain reduce from rank 0 up and a chain bcast back down, both at once. Every element is ((0 + 1) + 2) + ...

    The order of the additions is the same for every length and every number of segments. So the result of an element
    depends only on the ranks' values of this element.

    Cost: 2(p+s-2)(a + n/s b) + (p+s-2) n/s g
    Source: the chains of Pješivac-Grbović, Angskun, Bosilca, Fagg, Gabriel and Dongarra, Performance analysis of MPI
      collective operations, Cluster Computing 10 (2007)
    """
    top = at._replace(root=at.size - 1)
    stages = [*_reduce(top, OUTPUT), *_bcast(top, top.root - at.rank, -1, at.size - 1)]
    return Pipeline(stages, at.segments)


def scan(at: Place) -> Steps:
    """Each rank adds its own vector to what it receives from the rank before it, and sends the sum to the next rank.

    Cost: (p-1)(a + n b + n g)
    Source: Message Passing Interface Forum, MPI: A Message-Passing Interface Standard (1994), which defines scan by
      these sums
    """
    if at.rank == 0:
        yield (Copy(one(0), INPUT, OUTPUT),)
    else:
        yield (RecvReduce(at.rank - 1, one(0), INPUT, OUTPUT, mine_first=False),)
    if at.rank + 1 < at.size:
        yield (Send(at.rank + 1, one(0), OUTPUT),)


def exscan(at: Place) -> Steps:
    """Each rank receives its result from the rank before it, adds its own vector, and sends the sum to the next rank.

    A rank receives the sum twice: to add to it, and as its result. So all ranks but the last two send it twice.

    Cost: (p-2)(a + 2 n b + n g) + a + n b
    Source: Message Passing Interface Forum, MPI: A Message-Passing Interface Standard 2.0 (1997), which defines exscan
      by these sums
    """
    rank, has_next, next_has_next = at.rank, at.rank + 1 < at.size, at.rank + 2 < at.size
    sums: Space = SCRATCH if rank else INPUT
    if rank and has_next:
        yield (RecvReduce(rank - 1, one(0), INPUT, sums, mine_first=False),)
    if rank:
        yield (Recv(rank - 1, one(0), OUTPUT),)
    if has_next:
        yield (Send(rank + 1, one(0), sums),) * (2 if next_has_next else 1)


def _bcast(at: Place, hops: int, way: int, start: int) -> list[Stage]:
    """The stages of the rank that is ``hops`` ranks from where the chain begins, at time ``start``."""
    stages = []
    if hops:
        stages.append(Stage(start + hops - 1, Recv((at.rank - way) % at.size, one(0), OUTPUT)))
    if hops < at.size - 1:
        stages.append(Stage(start + hops, Send((at.rank + way) % at.size, one(0), OUTPUT)))
    return stages


def _reduce(at: Place, into: Space) -> list[Stage]:
    """The stages of a reduce that begins after the root, goes up and ends at the root."""
    hops = (at.shifted - 1) % at.size
    stages = []
    if hops:
        add = RecvReduce((at.rank - 1) % at.size, one(0), INPUT, into, mine_first=False)
        stages.append(Stage(hops - 1, add))
    if at.shifted:
        stages.append(Stage(hops, Send((at.rank + 1) % at.size, one(0), into if hops else INPUT)))
    return stages
