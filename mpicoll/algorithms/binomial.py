"""Algorithms on a binomial tree. The number of ranks that have a message doubles with each step.

Ranks are counted from the root. The subtree of the rank with number v has the ranks from v up to, but not including, v
plus its lowest bit. So it is a run of ranks, and its blocks are one run, or two if the run goes past the last rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpicoll.algorithms.steps import (
    INPUT,
    OUTPUT,
    SCRATCH,
    Action,
    Blocks,
    Copy,
    Place,
    Recv,
    RecvReduce,
    Send,
    Space,
    Steps,
    one,
    run,
)


def bcast(at: Place) -> Steps:
    """The root sends to the rank that is half of the ranks away. Then both send to ranks a quarter away, and so on.

    Cost: log2(p) (a + n b)
    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
      IJHPCA 19 (2005)
    """
    return _bcast(at, one(0))


def reduce(at: Place) -> Steps:
    """A binomial bcast in reverse: half of the ranks send to the rest and are done, then half of the rest, and so on.

    Cost: log2(p) (a + n b + n g)
    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
      IJHPCA 19 (2005)
    """
    return _reduce(at, SCRATCH if at.shifted else OUTPUT)


def allreduce(at: Place) -> Steps:
    """A binomial reduce to rank 0, then a binomial bcast of the result.

    Cost: log2(p) (2 a + 2 n b + n g)
    Source: Chan, Heimlich, Purkayastha and van de Geijn, Collective communication: theory, practice, and experience,
      Concurrency and Computation: Practice and Experience 19 (2007)
    """
    yield from _reduce(at, OUTPUT)
    yield from _bcast(at, one(0))


def gather(at: Place) -> Steps:
    """Each rank sends all the blocks of its subtree to the rank above it.

    Cost: log2(p) a + (p-1)/p n b
    Source: Chan, Heimlich, Purkayastha and van de Geijn, Collective communication: theory, practice, and experience,
      Concurrency and Computation: Practice and Experience 19 (2007)
    """
    return _gather(at, SCRATCH if at.shifted else OUTPUT)


def scatter(at: Place) -> Steps:
    """Each rank receives all the blocks of its subtree, and sends the ranks below it theirs, the largest subtree first.

    Cost: log2(p) a + (p-1)/p n b
    Source: Chan, Heimlich, Purkayastha and van de Geijn, Collective communication: theory, practice, and experience,
      Concurrency and Computation: Practice and Experience 19 (2007)
    """
    below = [*children(at)]
    if at.shifted:
        yield (Recv(parent(at), _blocks(at), SCRATCH if below else OUTPUT),)
    from_ = SCRATCH if at.shifted else INPUT
    for child in reversed(below):
        yield (Send(child, _blocks(at._replace(rank=child)), from_),)
    if below:
        yield (Copy(one(at.rank), from_, OUTPUT),)


def allgather(at: Place) -> Steps:
    """A binomial gather to rank 0, then a binomial bcast of all blocks.

    Cost: 2 log2(p) a + ((p-1)/p + log2(p)) n b
    Source: Chan, Heimlich, Purkayastha and van de Geijn, Collective communication: theory, practice, and experience,
      Concurrency and Computation: Practice and Experience 19 (2007)
    """
    yield from _gather(at, OUTPUT)
    yield from _bcast(at, run(0, at.size))


def scatter_allgather_bcast(at: Place) -> Steps:
    """A binomial scatter of one block for each rank, then a ring all-gather of the blocks that a rank does not have.

    Cost: (log2(p) + p-1) a + 2(p-1)/p n b
    Source: Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, Interprocessor collective communication library
      (InterCom), Scalable High-Performance Computing Conference (1994)
    """
    me, size = at.shifted, at.size
    after, before = at._replace(rank=at.actual(me + 1)), at.actual(me - 1)
    if me:
        yield (Recv(parent(at), (_subtree(at),), OUTPUT),)
    for child in reversed([*children(at)]):
        yield (Send(child, (_subtree(at._replace(rank=child)),), OUTPUT),)
    for step in range(size - 1):
        sent, taken = ((me - step - k) % size for k in (0, 1))
        actions: list[Action] = []
        if sent not in _subtree(after):
            actions.append(Send(after.rank, one(sent), OUTPUT))
        if taken not in _subtree(at):
            actions.append(Recv(before, one(taken), OUTPUT))
        if actions:
            yield tuple(actions)


def _bcast(at: Place, blocks: Blocks) -> Steps:
    if at.shifted:
        yield (Recv(parent(at), blocks, OUTPUT),)
    for child in reversed([*children(at)]):
        yield (Send(child, blocks, OUTPUT),)


def _reduce(at: Place, into: Space) -> Steps:
    mine: Space = INPUT
    for child in children(at):
        yield (RecvReduce(child, one(0), mine, into, mine_first=True),)
        mine = into
    if at.shifted:
        yield (Send(parent(at), one(0), mine),)


def _gather(at: Place, into: Space) -> Steps:
    below = [*children(at)]
    if below:
        taken = (Recv(child, _blocks(at._replace(rank=child)), into) for child in below)
        yield (Copy(one(at.rank), INPUT, into), *taken)
    if at.shifted:
        yield (Send(parent(at), _blocks(at), into if below else INPUT),)


def parent(at: Place) -> int:
    """The rank above this one: its distance from the root without the lowest bit."""
    return at.actual(at.shifted & (at.shifted - 1))


def children(at: Place) -> Iterator[int]:
    """The ranks directly below this one, the smallest subtree first."""
    bit = 1
    while bit < at.size and not at.shifted & bit:
        if at.shifted + bit < at.size:
            yield at.actual(at.shifted + bit)
        bit <<= 1


def _subtree(at: Place) -> range:
    """This rank and all ranks below it, counted from the root."""
    me = at.shifted
    return range(me, min(me + (me & -me), at.size) if me else at.size)


def _blocks(at: Place) -> Blocks:
    """The blocks of this rank and of all ranks below it."""
    stop = at.rank + len(_subtree(at))
    return run(at.rank, min(stop, at.size)) + run(0, stop - at.size)
