"""Which ranks wait for each other, so that none of their waits can end.

A rank that waits for a message waits for the ranks at its other end, and a rank in a collective for those that have not
come to it. Such waits are a graph (Hilbrich, de Supinski, Schulz and Müller, A graph based approach for MPI deadlock
detection, ICS 2009). What is not certain counts as a wait that may end.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from mpicoll.guard.watch.protocol import Account

__all__ = ["ends_of_message", "stuck"]

_NEED_ALL = {"allreduce", "reduce_scatter", "allgather", "alltoall", "barrier"}
_NEED_ALL |= {"allreduce_object", "allgather_object", "alltoall_object"}
"""Collectives that no rank can complete before all ranks have come to them."""


def stuck(accounts: Mapping[int, Account], left: Set[int]) -> set[int]:
    """The ranks of these accounts that wait for ever. ``left`` are ranks that do nothing more."""
    found = {rank for rank, each in accounts.items() if each.alone and (each.waits or ends_of_message(each))}
    while free := {rank for rank in found if _may_go_on(rank, accounts, found, left)}:
        found -= free
    return found


def ends_of_message(account: Account) -> set[int]:
    """The ranks that may be at the other end of the message for which this rank waits."""
    return {*account.sources, *account.targets}


def _may_go_on(rank: int, accounts: Mapping[int, Account], waiting: Set[int], left: Set[int]) -> bool:
    """Whether the rank's wait may end, if those that are ``waiting`` go on waiting."""
    mine = accounts[rank]
    if mine.waits:
        needs_all = (mine.description or "").partition(" ")[0] in _NEED_ALL
        return not needs_all or all(accounts[other].begun > mine.number for other in waiting)
    others = ends_of_message(mine)
    if not others <= waiting | left:
        return True
    return any(_may_serve(accounts[other], mine, other, rank) for other in others - left)


def _may_serve(its: Account, mine: Account, other: int, rank: int) -> bool:
    """Whether the other rank, which waits, may send or take this rank's message meanwhile."""
    sends = rank in its.targets and other in mine.sources
    takes = rank in its.sources and other in mine.targets
    return its.under_way or ((sends or takes) and other != rank)
