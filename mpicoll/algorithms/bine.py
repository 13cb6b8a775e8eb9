"""Bine (binomial negabinary) butterflies. Partners are as near as possible, and every message is one run of blocks."""

from __future__ import annotations

from mpicoll.algorithms import butterfly, swing
from mpicoll.algorithms.registry import power_of_two
from mpicoll.algorithms.steps import Blocks, Place, Steps, run


def allreduce(at: Place) -> Steps:
    """A reduce-scatter, then an all-gather, over a Bine butterfly of growing distance. The blocks are renumbered so
    that each message is one run of blocks.

    The members meet the same partners as in swing: this is how the paper defines the butterfly. The renumbering is the
    paper's, too. An all-reduce need not undo it, because it does not matter which rank reduces which block. Ranks
    beyond a power of two are folded.

    Cost: 2 log2(p) a + 2(p-1)/p n b + (p-1)/p n g; where p is no power of two, 3 a + 2 n b + n/2 g more
    Source: De Sensi, Pasqualoni, Piarulli, Bonato, Ba, Turisini, Domke and Hoefler, Bine trees: enhancing collective
      operations by optimizing communication locality, SC (2025)
    """
    members = power_of_two(at)
    steps = members.bit_length() - 1

    def held(member: int, step: int) -> Blocks:
        several = members >> step
        start = _renumbered(member, steps) & -several
        return run(start, start + several)

    return butterfly.allreduce(
        at, butterfly.Butterfly(steps, lambda member, step: swing.partner(member, step, members), held)
    )


_ODD_DIGITS = 0xAAAA_AAAA_AAAA_AAAA
"""The digits of base -2 whose values are negative."""


def _renumbered(member: int, digits: int) -> int:
    """The block of a member: the Gray code of its number in base -2, reversed. An even number is negated first.

    Each step of the butterfly changes one digit of the code, the lowest digit first. In the reversed code this is the
    highest digit.
    """
    signed = member if member % 2 else -member
    negabinary = ((signed + _ODD_DIGITS) ^ _ODD_DIGITS) & ((1 << digits) - 1)
    gray = negabinary ^ (negabinary >> 1)
    return int(f"{gray:0{digits}b}"[::-1], 2)
