"""Recursive doubling and halving. Partners are 1, 2, 4, ... ranks apart, so log2(p) steps connect all ranks."""

from __future__ import annotations

from mpicoll.algorithms import butterfly
from mpicoll.algorithms.butterfly import Fold
from mpicoll.algorithms.registry import power_of_two
from mpicoll.algorithms.steps import (
    INPUT,
    OUTPUT,
    SCRATCH,
    Action,
    Copy,
    Place,
    Recv,
    RecvReduce,
    Send,
    Space,
    Steps,
    one,
)


def allreduce(at: Place) -> Steps:
    """Partners exchange their whole vectors and both combine them. The distance doubles with each step.

    Cost: log2(p) (a + n b + n g); where p is no power of two, 2 a + 2 n b + n g more
    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
      IJHPCA 19 (2005)
    """
    members = power_of_two(at)
    fold, vector = Fold(at, members), one(0)
    steps = members.bit_length() - 1
    if fold.away:
        yield (Send(fold.twin, vector, INPUT),)
    else:
        mine = _before(steps)
        if fold.paired:
            yield (RecvReduce(fold.twin, vector, INPUT, mine, mine_first=True),)
        elif mine == SCRATCH:
            yield (Copy(vector, INPUT, SCRATCH),)
        else:
            mine = INPUT
        for step in range(steps):
            partner = fold.member ^ (1 << step)
            peer, into = fold.rank(partner), _other(mine)
            yield (Send(peer, vector, mine), RecvReduce(peer, vector, mine, into, mine_first=fold.member < partner))
            mine = into
    if fold.paired:
        yield from fold.spread(vector)


def allgather(at: Place) -> Steps:
    """Partners exchange all blocks that they have. The distance doubles with each step.

    Cost: log2(p) a + (p-1)/p n b; where p is no power of two, 2 a + n b more
    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
      IJHPCA 19 (2005)
    """
    members = power_of_two(at)
    fold = Fold(at, members)
    return fold.allgather(butterfly.double(fold, butterfly.binary(members, fold.blocks)))


def reduce_scatter(at: Place) -> Steps:
    """Each partner sends the half of the blocks that the other's side needs. The distance halves with each step.

    Cost: log2(p) a + (p-1)/p n b + (p-1)/p n g; where p is no power of two, 3 a + n b + n/2 g more
    Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH,
      IJHPCA 19 (2005)
    """
    members = power_of_two(at)
    fold = Fold(at, members)
    halving = butterfly.binary(members, fold.blocks)
    if not fold.paired:
        yield from butterfly.halve(fold, halving, INPUT, SCRATCH, OUTPUT)
        return
    yield from fold.reduce(at.size, SCRATCH)
    if fold.away:
        yield (Recv(fold.twin, one(at.rank), OUTPUT),)
    else:
        yield from butterfly.halve(fold, halving, SCRATCH, SCRATCH, SCRATCH)
        yield (Copy(one(at.rank), SCRATCH, OUTPUT), Send(fold.twin, one(fold.twin), SCRATCH))


def scan(at: Place) -> Steps:
    """In the step at distance d, a rank adds to its result that of the rank d before it. So it covers 2d ranks.

    Cost: log2(p) (a + n b + n g)
    Source: Hillis and Steele, Data parallel algorithms, CACM 29 (1986)
    """
    mine = _before(at.rank.bit_length())
    if at.rank == 0 or mine == SCRATCH:
        yield (Copy(one(0), INPUT, mine),)
    else:
        mine = INPUT
    yield from _prefixes(at, 0, mine)


def exscan(at: Place) -> Steps:
    """Every rank but the last sends its vector to the next rank. Then all ranks but rank 0 scan what they received.

    Cost: a + n b + log2(p-1) (a + n b + n g)
    Source: Hillis and Steele, Data parallel algorithms, CACM 29 (1986), one rank further on
    """
    shift: list[Action] = []
    if at.rank + 1 < at.size:
        shift.append(Send(at.rank + 1, one(0), INPUT))
    if at.rank:
        shift.append(Recv(at.rank - 1, one(0), SCRATCH))
    yield tuple(shift)
    if at.rank:
        mine = _before((at.rank - 1).bit_length())
        if mine == OUTPUT:
            yield (Copy(one(0), SCRATCH, OUTPUT),)
        yield from _prefixes(at, 1, mine)


def _prefixes(at: Place, first: int, mine: Space) -> Steps:
    """Every rank from ``first`` on combines what lies in ``mine`` on the ranks from ``first`` up to itself."""
    distance = 1
    while first + distance < at.size:
        step: list[Action] = []
        into = mine
        if at.rank + distance < at.size:
            step.append(Send(at.rank + distance, one(0), mine))
        if at.rank - distance >= first:
            into = _other(mine)
            step.append(RecvReduce(at.rank - distance, one(0), mine, into, mine_first=False))
        if step:
            yield tuple(step)
        mine = into
        distance *= 2


def _before(reductions: int) -> Space:
    """The space where a vector must start, so that after so many reductions it ends in OUTPUT.

    It changes its space with each reduction, because a step must not write what it sends.
    """
    return SCRATCH if reductions % 2 else OUTPUT


def _other(space: Space) -> Space:
    return OUTPUT if space == SCRATCH else SCRATCH
