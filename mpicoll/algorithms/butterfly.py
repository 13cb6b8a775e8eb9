"""Butterflies. In each step every member exchanges data with a partner, and both end with what the two had.

In one direction, the vector halves with each step until a member holds its own block, reduced. In the other direction,
the blocks double until a member holds all. Butterflies differ in who meets whom in which step, and so in how
far the long messages travel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mpicoll.algorithms.folding import Fold
from mpicoll.algorithms.registry import power_of_two
from mpicoll.algorithms.steps import INPUT, OUTPUT, Blocks, Place, Recv, RecvReduce, Send, Space, Steps, run


class Butterfly(NamedTuple):
    """Who meets whom, and who holds what, in each step of the halving.

    ``partner(member, step)`` is whom a member meets in a step. ``held(member, step)`` are the blocks that it holds
    before that step: those that it will hold after the step, and those that its partner will.
    """

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


def allreduce(at: Place, butterfly: Butterfly) -> Steps:
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
