"""Which ranks wait for each other, so that none of their waits can end.

A rank that waits for a message waits for the ranks at its other end, and a rank in a collective for those that have not
come to it. Such waits are a graph (Hilbrich, de Supinski, Schulz and Müller, A graph based approach for MPI deadlock
detection, ICS 2009). What is not certain counts as a wait that may end.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from mpicoll.guard.watch.protocol import Account

_NEED_ALL = {"allreduce", "reduce_scatter", "allgather", "alltoall", "barrier"}
_NEED_ALL |= {"allreduce_object", "allgather_object", "alltoall_object"}
"""Collectives that no rank can complete before all ranks have come to them."""
_NEED_ROOT = {"bcast", "scatter", "bcast_object", "scatter_object"}
"""Those that no rank can complete before the root has come."""
_ROOT_NEEDS_ALL = {"reduce", "gather", "gather_object"}
"""Those that the root cannot complete before all ranks have come."""

Begun = Mapping[str, Mapping[int, int]]
"""How many calls of a communicator each of its ranks has begun, as far as that is known."""


class Wait(NamedTuple):
    """The one thing that a rank waits for."""

    communicator: str
    account: Account

    @property
    def others(self) -> set[int]:
        """The ranks that may be at the other end of the message for which it waits."""
        return {*self.account.sources, *self.account.targets}

    def goes_on(self, before: Wait, seconds: float) -> bool:
        """Whether it is the same wait as about so many seconds before."""
        longer = self.account.stuck - before.account.stuck
        return self.communicator == before.communicator and longer >= seconds / 2


def stuck(waits: Mapping[int, Wait], begun: Begun, left: Set[int]) -> set[int]:
    """The ranks that wait for ever. ``left`` are ranks that do nothing more."""
    found = {rank: wait for rank, wait in waits.items() if wait.account.alone and (wait.account.waits or wait.others)}
    while free := {rank for rank in found if _may_go_on(rank, found, begun, left)}:
        found = {rank: wait for rank, wait in found.items() if rank not in free}
    return {*found}


def _may_go_on(rank: int, waiting: Mapping[int, Wait], begun: Begun, left: Set[int]) -> bool:
    """Whether the rank's wait may end, if those that are ``waiting`` go on waiting."""
    mine = waiting[rank]
    if mine.account.waits:
        calls = begun[mine.communicator]
        members = waiting.keys() & calls.keys()
        needed = _needed(rank, mine.account, members)
        if mine.account.ahead:  # it waits in memory of the kernel, which is used again after so many calls
            last = mine.account.number + 1 - mine.account.ahead
            needed = needed | {other for other in members if calls[other] <= last}
        return all(calls[other] > mine.account.number for other in needed)
    if not mine.others <= waiting.keys() | left:
        return True
    return any(_may_serve(waiting[other], mine, other, rank) for other in mine.others - left)


def _needed(rank: int, account: Account, waiting: Set[int]) -> Set[int]:
    """Those of the ranks that are ``waiting`` without which the rank's collective cannot end for it."""
    operation = account.operation
    # Without a root, a collective that has one is carried out by the kernel in a way in which all ranks wait for all.
    by_all = account.root is None and operation in _NEED_ROOT | _ROOT_NEEDS_ALL
    if by_all or operation in _NEED_ALL or (operation in _ROOT_NEEDS_ALL and rank == account.root):
        return waiting
    return waiting & {account.root} if operation in _NEED_ROOT else set()


def _may_serve(its: Wait, mine: Wait, other: int, rank: int) -> bool:
    """Whether the other rank, which waits, may send or take this rank's message meanwhile."""
    if its.account.under_way:
        return True
    if its.communicator != mine.communicator or other == rank:
        return False
    one, own = its.account, mine.account
    sends = rank in one.targets and other in own.sources and own.source_tag in (None, one.target_tag)
    takes = rank in one.sources and other in own.targets and one.source_tag in (None, own.target_tag)
    return sends or takes
