"""Butterflies. In each step every member exchanges data with a partner, and both end with what the two had.

In one direction, the vector halves with each step until a member holds its own block, reduced. In the other direction,
the blocks double until a member holds all. Butterflies differ in who meets whom in which step, and so in how far the
long messages travel: in Rabenseifner's, partners differ in one bit of their numbers; in swing and in Bine (binomial
negabinary) butterflies, they are as near as possible. In recursive doubling, partners are 1, 2, 4, ... ranks apart, and
exchange whole vectors, or all that they have.

Folding lets an algorithm for a power of two of ranks, or for an even number, serve any number of ranks. The first ranks
form pairs. The second rank of a pair hands its input to the first, which acts for both. At the end, the second rank
gets its result. The ranks that act are the members. They are numbered in the order of their ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mpicoll.algorithms.algorithm import Algorithm

from mpicoll.algorithms.steps import (  # isort: skip
    INPUT, OUTPUT, SCRATCH, Action, Blocks, Copy, Place, Recv, RecvReduce, Send, Space, Steps, merged, one,
    power_of_two, run,
)  # fmt: skip

_ODD_DIGITS = 0xAAAA_AAAA_AAAA_AAAA  # the digits of base -2 whose values are negative


class Butterfly(NamedTuple):
    """Who meets whom, and who holds what, in each step of the halving.

    ``partner(member, step)`` is whom a member meets in a step. ``held(member, step)`` are the blocks that it holds
    before that step: those that it will hold after the step, and those that its partner will."""

    steps: int
    partner: Callable[[int, int], int]
    held: Callable[[int, int], Blocks]


def binary(members: int, blocks: Callable[[int, int], Blocks] = run) -> Butterfly:
    """Partners differ in one bit, the highest bit first. ``blocks(start, stop)`` are the blocks of these members."""
    steps = members.bit_length() - 1

    def partner(member: int, step: int) -> int:
        return member ^ (members >> (step + 1))

    def held(member: int, step: int) -> Blocks:
        several = members >> step
        start = member & -several
        return blocks(start, start + several)

    return Butterfly(steps, partner, held)


def halve(fold: Fold, butterfly: Butterfly, mine: Space, into: Space, last: Space) -> Steps:
    """Reduce and scatter what lies in ``mine``, through ``into``. A member's blocks end in ``last``."""
    me = fold.member
    for step in range(butterfly.steps):
        if step == butterfly.steps - 1:
            into = last
        partner = butterfly.partner(me, step)
        kept, given = butterfly.held(me, step + 1), butterfly.held(partner, step + 1)
        peer = fold.rank(partner)
        yield (Send(peer, given, mine), RecvReduce(peer, kept, mine, into, mine_first=me < partner))
        mine = into


def double(fold: Fold, butterfly: Butterfly) -> Steps:
    """Gather all blocks in OUTPUT, which holds each member's own blocks."""
    me = fold.member
    for step in reversed(range(butterfly.steps)):
        partner = butterfly.partner(me, step)
        mine, theirs = butterfly.held(me, step + 1), butterfly.held(partner, step + 1)
        peer = fold.rank(partner)
        yield (Send(peer, mine, OUTPUT), Recv(peer, theirs, OUTPUT))


def halve_and_double(at: Place, butterfly: Butterfly) -> Steps:
    """Halve, then double, with one block for each member."""
    members = power_of_two(at)
    fold = Fold(at, members)
    if fold.paired:
        yield from fold.reduce(members, OUTPUT)
    if not fold.away:
        yield from halve(fold, butterfly, OUTPUT if fold.paired else INPUT, OUTPUT, OUTPUT)
        yield from double(fold, butterfly)
    if fold.paired:
        yield from fold.spread(run(0, members))


class Fold:
    """The part of a rank when ``members`` of the ranks, at least half, act for all. Ranks are counted from the root.

    ``paired`` says whether this rank forms a pair with ``twin``. ``away`` says whether ``twin`` acts for it."""

    def __init__(self, at: Place, members: int) -> None:
        self._at, self._pairs = at, at.size - members
        self.paired = at.shifted < 2 * self._pairs
        self.away = self.paired and at.shifted % 2 == 1
        self.twin = at.actual(at.shifted ^ 1)
        self.member = at.shifted // 2 if self.paired else at.shifted - self._pairs

    def rank(self, member: int) -> int:
        """The rank that is this member."""
        return self._at.actual(self._first(member))

    def blocks(self, start: int, stop: int) -> Blocks:
        """The blocks of the ranks that members ``start`` to ``stop`` act for, if each rank has one block."""
        return run(self._first(start), self._first(stop))

    def _first(self, member: int) -> int:
        return member + min(member, self._pairs)

    def reduce(self, blocks: int, into: Space) -> Steps:
        """Each of a pair combines one half of their two vectors. The first then collects the whole in ``into``."""
        lower, upper = run(0, blocks // 2), run(blocks // 2, blocks)
        if self.away:
            yield (Send(self.twin, lower, INPUT), RecvReduce(self.twin, upper, INPUT, into, mine_first=False))
            yield (Send(self.twin, upper, into),)
        else:
            yield (Send(self.twin, upper, INPUT), RecvReduce(self.twin, lower, INPUT, into, mine_first=True))
            yield (Recv(self.twin, upper, into),)

    def spread(self, blocks: Blocks) -> Steps:
        """The first of a pair sends blocks of its OUTPUT to the second."""
        yield (Recv(self.twin, blocks, OUTPUT) if self.away else Send(self.twin, blocks, OUTPUT),)

    def allgather(self, exchange: Steps) -> Steps:
        """An all-gather. In ``exchange``, a member that has the blocks of the ranks it acts for collects all blocks."""
        rank, size = self._at.rank, self._at.size
        yield (Copy(one(rank), INPUT, OUTPUT),)
        if self.paired:
            yield (Send(self.twin, one(rank), OUTPUT) if self.away else Recv(self.twin, one(self.twin), OUTPUT),)
        if not self.away:
            yield from exchange
        if self.paired:
            second = rank if self.away else self.twin
            yield from self.spread(run(0, second) + run(second + 1, size))


def rabenseifner_allreduce(at: Place) -> Steps:
    """A reduce-scatter by recursive halving, then an all-gather by recursive doubling.

    Cost: 2 log2(p) a + 2(p-1)/p n b + (p-1)/p n g; where p is no power of two, 3 a + 2 n b + n/2 g more
    Source: Rabenseifner, Optimization of collective reduction operations, ICCS (2004)"""
    return halve_and_double(at, binary(power_of_two(at)))


def rabenseifner_reduce(at: Place) -> Steps:
    """A reduce-scatter by recursive halving, then a gather to the root on a binomial tree.

    Cost: 2 log2(p) a + 2(p-1)/p n b + (p-1)/p n g; where p is no power of two, 2 a + n b + n/2 g more
    Source: Rabenseifner, Optimization of collective reduction operations, ICCS (2004)"""
    members = power_of_two(at)
    fold, halving = Fold(at, members), binary(members)
    into: Space = SCRATCH if at.shifted else OUTPUT
    if fold.paired:
        yield from fold.reduce(members, into)
    if fold.away:
        return
    yield from halve(fold, halving, into if fold.paired else INPUT, into, into)
    me = fold.member
    for step in reversed(range(halving.steps)):
        partner = halving.partner(me, step)
        if partner < me:
            yield (Send(fold.rank(partner), halving.held(me, step + 1), into),)
            return
        yield (Recv(fold.rank(partner), halving.held(partner, step + 1), into),)


def swing_allreduce(at: Place) -> Steps:
    """A reduce-scatter, then an all-gather, between partners at distance 1, -1, 3, -5, 11, ... The longest messages go
    to the nearest partners.

    This is the paper's bandwidth-optimal variant on a ring (a torus of one dimension, one port). Ranks beyond a power
    of two are folded. The paper serves even numbers of ranks without folding.

    Cost: 2 log2(p) a + 2(p-1)/p n b + (p-1)/p n g; where p is no power of two, 3 a + 2 n b + n/2 g more
    Source: De Sensi, Bonato, Saam and Hoefler, Swing: short-cutting rings for higher bandwidth allreduce, NSDI (2024)
    """
    members = power_of_two(at)
    steps = members.bit_length() - 1

    def held(member: int, step: int) -> Blocks:
        # From this step on, all distances differ by multiples of 2^(step+1), and a partner has the other parity.
        if step == steps:
            return one(member)
        modulus = 2 << step
        met = _swing_partner(member, step, members)
        return merged(b for m in (member, met) for b in range(m % modulus, members, modulus))

    return halve_and_double(at, Butterfly(steps, lambda m, step: _swing_partner(m, step, members), held))


def _swing_partner(member: int, step: int, members: int) -> int:
    """Whom a member meets in a step. Even members go one way, and odd members go the other way."""
    distance: int = (1 - (-2) ** (step + 1)) // 3
    return (member - distance if member % 2 else member + distance) % members


def bine_allreduce(at: Place) -> Steps:
    """A reduce-scatter, then an all-gather, over a Bine butterfly of growing distance. The blocks are renumbered so
    that each message is one run of blocks.

    The members meet the same partners as in swing: this is how the paper defines the butterfly. The renumbering is the
    paper's, too. An all-reduce need not undo it, because it does not matter which rank reduces which block. Ranks
    beyond a power of two are folded.

    Cost: 2 log2(p) a + 2(p-1)/p n b + (p-1)/p n g; where p is no power of two, 3 a + 2 n b + n/2 g more
    Source: De Sensi and others, Bine trees: enhancing collective operations by optimizing communication locality, SC
      (2025)"""
    members = power_of_two(at)
    steps = members.bit_length() - 1

    def held(member: int, step: int) -> Blocks:
        several = members >> step
        start = _renumbered(member, steps) & -several
        return run(start, start + several)

    return halve_and_double(at, Butterfly(steps, lambda member, step: _swing_partner(member, step, members), held))


def _renumbered(member: int, digits: int) -> int:
    """The block of a member: the Gray code of its number in base -2, reversed. An even number is negated first.

    Each step of the butterfly changes one digit of the reversed code, the highest digit first."""
    signed = member if member % 2 else -member
    negabinary = ((signed + _ODD_DIGITS) ^ _ODD_DIGITS) & ((1 << digits) - 1)
    gray = negabinary ^ (negabinary >> 1)
    return int(f"{gray:0{digits}b}"[::-1], 2)


def doubling_allreduce(at: Place) -> Steps:
    """Partners exchange their whole vectors and both combine them. The distance doubles with each step.

    Cost: log2(p) (a + n b + n g); where p is no power of two, 2 a + 2 n b + n g more
    Source: Thakur and others, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"""
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


def doubling_allgather(at: Place) -> Steps:
    """Partners exchange all blocks that they have. The distance doubles with each step.

    Cost: log2(p) a + (p-1)/p n b; where p is no power of two, 2 a + n b more
    Source: Thakur and others, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"""
    members = power_of_two(at)
    fold = Fold(at, members)
    return fold.allgather(double(fold, binary(members, fold.blocks)))


def halving_reduce_scatter(at: Place) -> Steps:
    """Each partner sends the half of the blocks that the other's side needs. The distance halves with each step.

    Cost: log2(p) a + (p-1)/p n b + (p-1)/p n g; where p is no power of two, 3 a + n b + n/2 g more
    Source: Thakur and others, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)"""
    members = power_of_two(at)
    fold = Fold(at, members)
    halving = binary(members, fold.blocks)
    if not fold.paired:
        yield from halve(fold, halving, INPUT, SCRATCH, OUTPUT)
        return
    yield from fold.reduce(at.size, SCRATCH)
    if fold.away:
        yield (Recv(fold.twin, one(at.rank), OUTPUT),)
    else:
        yield from halve(fold, halving, SCRATCH, SCRATCH, SCRATCH)
        yield (Copy(one(at.rank), SCRATCH, OUTPUT), Send(fold.twin, one(fold.twin), SCRATCH))


def doubling_scan(at: Place) -> Steps:
    """In the step at distance d, a rank adds to its result that of the rank d before it. So it covers 2d ranks.

    Cost: log2(p) (a + n b + n g)
    Source: Hillis and Steele, Data parallel algorithms, CACM 29 (1986)"""
    mine = _before(at.rank.bit_length())
    if at.rank == 0 or mine == SCRATCH:
        yield (Copy(one(0), INPUT, mine),)
    else:
        mine = INPUT
    yield from _prefixes(at, 0, mine)


def doubling_exscan(at: Place) -> Steps:
    """Every rank but the last sends its vector to the next rank. Then all ranks but rank 0 scan what they received.

    Cost: a + n b + log2(p-1) (a + n b + n g)
    Source: Hillis and Steele, Data parallel algorithms, CACM 29 (1986), one rank further on"""
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

    It changes its space with each reduction, because a step must not write what it sends."""
    return SCRATCH if reductions % 2 else OUTPUT


def _other(space: Space) -> Space:
    return OUTPUT if space == SCRATCH else SCRATCH


ALGORITHMS = (
    Algorithm("reduce", "rabenseifner", rabenseifner_reduce, power_of_two),
    Algorithm("allreduce", "recursive_doubling", doubling_allreduce),
    Algorithm("allreduce", "rabenseifner", rabenseifner_allreduce, power_of_two),
    Algorithm("allreduce", "swing", swing_allreduce, power_of_two),
    Algorithm("allreduce", "bine", bine_allreduce, power_of_two),
    Algorithm("allgather", "recursive_doubling", doubling_allgather, uneven=True),
    Algorithm("reduce_scatter", "recursive_halving", halving_reduce_scatter, uneven=True),
    Algorithm("scan", "recursive_doubling", doubling_scan),
    Algorithm("exscan", "recursive_doubling", doubling_exscan),
)
