"""Which ranks wait for each other, so that none of their waits can end.

A rank that waits for a message waits for the ranks at its other end, a rank in a collective for those that have not
come to it, and a rank that waits for a lock for those that hold it. Such waits are a graph (Hilbrich, de Supinski,
Schulz and Müller, A graph based approach for MPI deadlock detection, ICS 2009). What is not certain counts as a wait
that may end. The coordinator asks ranks that have waited for long, twice."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.supervise.agent import StatusOf
from mpicoll.supervise.messages import RankStatus
from mpicoll.supervise.ranks import CommunicatorState, Processes
from mpicoll.supervise.record import BROKEN, CLOSED
from mpicoll.supervise.report import Why
from mpicoll.supervise.watched import GIVES, LATE, LONG, SHORT, TAKES, WARN

_SECONDS_TO_SEE = 2.0  # how long a rank that runs may take to see what has come for it
_SECONDS_ON_A_NETWORK = 180.0
"""How long a message may be on its way between nodes. After an outage, TCP may wait as long again before it sends."""

Communicators = Mapping[str, CommunicatorState]
Begun = Mapping[str, Mapping[int, int]]
"""How many calls of a communicator each of its ranks has begun, as far as that is known."""


class Wait(NamedTuple):
    """The one thing that a rank waits for."""

    communicator: str
    ranks: Sequence[int]  # those of the communicator, in order
    status: RankStatus

    @property
    def others(self) -> set[int]:
        """The ranks that may be at the other end of the message for which it waits."""
        return {*self.status.ends.sources, *self.status.ends.targets}

    @property
    def sends(self) -> bool:
        return bool(self.status.ends.targets)

    def goes_on(self, before: Wait, seconds: float) -> bool:
        """Whether it is the same wait as about so many seconds before."""
        longer = self.status.stuck - before.status.stuck
        return self.communicator == before.communicator and longer >= seconds / 2


def stuck(waits: Mapping[int, Wait], begun: Begun, left: Set[int], silent: Set[int] = frozenset()) -> set[int]:
    """The ranks that wait for ever. Ranks that have ``left`` do nothing more, and the ``silent`` ones send no more."""
    # What would end it must be known, and nothing else of the rank may go on.
    known = {r: w for r, w in waits.items() if w.status.alone and (w.status.waits or w.others or w.status.ends.lock)}
    while free := {r for r, w in known.items() if _may_go_on(r, known, begun, left if w.sends else left | silent)}:
        known = {rank: wait for rank, wait in known.items() if rank not in free}
    return {*known}


def _may_go_on(rank: int, waiting: Mapping[int, Wait], begun: Begun, left: Set[int]) -> bool:
    """Whether the rank's wait may end, if those that are ``waiting`` go on waiting."""
    mine = waiting[rank]
    if mine.status.waits:
        calls = begun[mine.communicator]
        there = waiting.keys() & calls.keys()
        needed = _needed(rank, mine, there)
        if mine.status.ahead:  # it waits in memory of the kernel, which is used again after so many calls
            last = mine.status.number + 1 - mine.status.ahead
            needed = needed | {other for other in there if calls[other] <= last}
        return all(calls[other] > mine.status.number for other in needed)
    lock = mine.status.ends.lock
    if lock is not None:
        return not any(held.keeps(lock) for wait in waiting.values() for held in wait.status.locks)
    if not mine.others <= waiting.keys() | left:
        return True
    return any(_may_serve(waiting[other], mine, other, rank) for other in mine.others - left)


def _needed(rank: int, wait: Wait, waiting: Set[int]) -> Set[int]:
    """Those of the ranks that are ``waiting`` without which the rank's collective cannot end for it."""
    table = COLLECTIVES.get(wait.status.operation.removesuffix("_object"))
    if table is None:  # as of an allgatherv: not all ranks need give something
        return set()
    root = wait.status.root
    if root is None and table.rooted:  # the kernel carries it out in a way in which all ranks wait for all
        return waiting
    needs = table.needs(wait.ranks.index(rank), len(wait.ranks), 0 if root is None else wait.ranks.index(root))
    return waiting & {wait.ranks[other] for other in needs}


def _may_serve(its: Wait, mine: Wait, other: int, rank: int) -> bool:
    """Whether the other rank, which waits, may send or take this rank's message meanwhile."""
    if its.status.under_way:
        return True
    if its.communicator != mine.communicator or other == rank:
        return False
    one, own = its.status.ends, mine.status.ends
    sends = rank in one.targets and other in own.sources and own.source_tag in (None, one.target_tag)
    takes = rank in one.sources and other in own.targets and one.source_tag in (None, own.target_tag)
    return sends or takes


async def found(processes: Processes, communicators: Communicators) -> tuple[CommunicatorState, Why, set[int]] | None:
    """A communicator in which ranks wait for ever, why, and which ranks. None if nobody does as far as is known."""
    before, begun = await _late(processes, communicators)
    if not stuck(before, begun, _left(processes), _left(processes, GIVES)):
        return None
    # A rank that was stopped may have got what it waits for meanwhile, and not have seen it yet.
    await asyncio.sleep(_SECONDS_TO_SEE)
    (now, begun), left = await _late(processes, communicators), _left(processes)
    same = {r: wait for r, wait in now.items() if r in before and wait.goes_on(before[r], _SECONDS_TO_SEE)}
    ranks = stuck(same, begun, left, silent := _left(processes, GIVES))
    waits = [same[rank] for rank in sorted(ranks)]
    where = communicators.get(waits[0].communicator) if waits else None
    if where is None:  # or it has ended meanwhile
        return None
    has_left = any((left if wait.sends else left | silent) & wait.others for wait in waits)
    why = Why.HAS_LEFT if has_left else Why.STUCK
    return where, why, {rank for rank in ranks if same[rank].communicator == where.name}


def _patience(processes: Processes) -> float:
    """How long a wait lasts until nobody expects anything to come that was sent before."""
    hosts = {process.process.host for process in processes.values()}
    return LATE if len(hosts) == 1 else _SECONDS_ON_A_NETWORK


async def _late(processes: Processes, communicators: Communicators) -> tuple[dict[int, Wait], Begun]:
    """What those ranks wait for that have waited for long, and how many calls they have begun."""
    patience = _patience(processes)
    known = [each for each in communicators.values() if each.ranks and each.longest() != SHORT]
    known = [each for each in known if not each.are(BROKEN, CLOSED)]  # nobody knows what others wait for there
    if all(each.longest() < (LONG if patience == LATE else WARN) for each in known):
        return {}, {}  # do not ask thousands of ranks for nothing
    waiting = {rank for each in known for rank, wait in each.waits.items() if wait != SHORT}
    asked = [processes.ask(waiting & {*each.ranks}, StatusOf(each.name, None)) for each in known]
    waits: defaultdict[int, list[Wait]] = defaultdict(list)
    begun: dict[str, dict[int, int]] = {}
    for each, answers in zip(known, await asyncio.gather(*asked), strict=True):
        statuses = {rank: status for rank, status in answers.items() if status is not None}
        begun[each.name] = {rank: status.begun for rank, status in statuses.items()}
        for rank, status in statuses.items():
            if status.seconds > 0:
                waits[rank].append(Wait(each.name, each.ranks, status))
    # Of two waits, one within the other, nobody knows which one keeps the rank.
    alone = {rank: its[0] for rank, its in waits.items() if len(its) == 1}
    return {rank: wait for rank, wait in alone.items() if wait.status.stuck >= patience}, begun


def _left(processes: Processes, serves: int = GIVES | TAKES) -> set[int]:
    """The ranks that do nothing more, and of whose last messages that they may ``serve`` none is under way."""
    patience, known = _patience(processes), processes.items()
    return {r for r, each in known if each.left is not None and each.left >= patience and not each.serves & serves}
