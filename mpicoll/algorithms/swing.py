"""Swing: a butterfly whose partners lie on alternating sides, so that they are nearer on a ring or a torus."""

from __future__ import annotations

from mpicoll.algorithms import butterfly
from mpicoll.algorithms.registry import power_of_two
from mpicoll.algorithms.steps import Blocks, Place, Steps, merged, one


def allreduce(at: Place) -> Steps:
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
        met = partner(member, step, members)
        return merged(b for m in (member, met) for b in range(m % modulus, members, modulus))

    return butterfly.allreduce(at, butterfly.Butterfly(steps, lambda m, step: partner(m, step, members), held))


def partner(member: int, step: int, members: int) -> int:
    """Whom a member meets in a step. Even members go one way, and odd members go the other way."""
    distance: int = (1 - (-2) ** (step + 1)) // 3
    return (member - distance if member % 2 else member + distance) % members
