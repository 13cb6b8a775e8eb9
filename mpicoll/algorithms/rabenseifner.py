"""Rabenseifner's reductions. Recursive halving scatters the reduced vector, and a second phase collects it."""

from __future__ import annotations

from mpicoll.algorithms import butterfly
from mpicoll.algorithms.folding import Fold
from mpicoll.algorithms.registry import power_of_two
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Place, Recv, Send, Space, Steps


def allreduce(at: Place) -> Steps:
    """A reduce-scatter by recursive halving, then an all-gather by recursive doubling.

    Cost: 2 log2(p) a + 2(p-1)/p n b + (p-1)/p n g; where p is no power of two, 3 a + 2 n b + n/2 g more
    Source: Rabenseifner, Optimization of collective reduction operations, ICCS (2004)
    """
    return butterfly.allreduce(at, butterfly.binary(power_of_two(at)))


def reduce(at: Place) -> Steps:
    """A reduce-scatter by recursive halving, then a gather to the root on a binomial tree.

    Cost: 2 log2(p) a + 2(p-1)/p n b + (p-1)/p n g; where p is no power of two, 2 a + n b + n/2 g more
    Source: Rabenseifner, Optimization of collective reduction operations, ICCS (2004)
    """
    members = power_of_two(at)
    fold, halving = Fold(at, members), butterfly.binary(members)
    into: Space = SCRATCH if at.shifted else OUTPUT
    if fold.paired:
        yield from fold.reduce(members, into)
    if fold.away:
        return
    yield from butterfly.halve(fold, halving, into if fold.paired else INPUT, into, into)
    me = fold.member
    for step in reversed(range(halving.steps)):
        partner = halving.partner(me, step)
        if partner < me:
            yield (Send(fold.rank(partner), halving.held(me, step + 1), into),)
            return
        yield (Recv(fold.rank(partner), halving.held(partner, step + 1), into),)
