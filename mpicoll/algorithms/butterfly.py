"""Butterflies: in each step every member exchanges with a partner, and both end with what the two had.

Run one way, the vector halves with each step until a member holds its own block, reduced; run the other way, the blocks
double until it holds all. Butterflies differ in who meets whom when, and so in how far the long messages travel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mpicoll.algorithms.folding import Fold
from mpicoll.algorithms.registry import power_of_two
from mpicoll.schedule import INPUT, OUTPUT, Blocks, Place, Recv, RecvReduce, Send, Space, Steps, run

__all__ = ["Butterfly", "allreduce", "binary", "double", "halve"]


class Butterfly(NamedTuple):
    """``partner(member, step)`` says whom a member meets in a step of the halving, and ``held(member, step)`` which
    blocks it holds before that step: those that it will hold after it, and those that its partner will."""

    steps: int
    partner: Callable[[int, int], int]
    held: Callable[[int, int], Blocks]


def binary(members: int, blocks: Callable[[int, int], Blocks] = run) -> Butterfly:
    """Partners differ in one bit, the highest first. ``blocks(start, stop)`` are those of these members."""
    steps = members.bit_length() - 1

    def partner(member: int, step: int) -> int:
        return member ^ (members >> (step + 1))

    def held(member: int, step: int) -> Blocks:
        several = members >> step
        start = member & -several
        return blocks(start, start + several)

    return Butterfly(steps, partner, held)


def halve(fold: Fold, butterfly: Butterfly, mine: Space, into: Space, last: Space) -> Steps:
    """Reduce and scatter what lies in ``mine``, by way of ``into``; a member's blocks end in ``last``."""
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
    """Gather all blocks in OUTPUT, where each member's own lie."""
    me = fold.member
    for step in reversed(range(butterfly.steps)):
        partner = butterfly.partner(me, step)
        mine, theirs = butterfly.held(me, step + 1), butterfly.held(partner, step + 1)
        peer = fold.rank(partner)
        yield (Send(peer, mine, OUTPUT), Recv(peer, theirs, OUTPUT))


def allreduce(at: Place, butterfly: Butterfly) -> Steps:
    """Halve, then double, over a block a member."""
    members = power_of_two(at)
    fold = Fold(at, members)
    if fold.paired:
        yield from fold.reduce(members, OUTPUT)
    if not fold.away:
        yield from halve(fold, butterfly, OUTPUT if fold.paired else INPUT, OUTPUT, OUTPUT)
        yield from double(fold, butterfly)
    if fold.paired:
        yield from fold.spread(run(0, members))
