"""What the calls of a recording cost: how much of it is exposed, how much is hidden behind the program's own work, and
how much is waiting for ranks that came late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.profile.recording import Call, Recording, Span, total, union, within


@dataclass(frozen=True)
class RankCosts:
    """Microseconds of one rank's time. ``exposed`` and ``computing`` make up all of it."""

    rank: int
    time: float
    exposed: float  # in which a thread of the program was in a call, or waited for one
    late: float  # the part of that before the ranks had come whose data the call needs
    hidden: float  # in which calls were under way while the program went on

    @property
    def computing(self) -> float:
        return self.time - self.exposed


@dataclass
class SiteCosts:
    """The calls of one kind that are made at one line of the program, on all ranks."""

    kind: str
    site: str
    calls: int = 0
    exposed: float = 0.0
    late: float = 0.0
    hidden: float = 0.0


@dataclass(frozen=True)
class Costs:
    """Everything that a report says."""

    ranks: list[RankCosts]
    sites: list[SiteCosts]  # the most costly ones first
    last: defaultdict[int, float]  # how long others have waited for which rank, in microseconds


def costs(recording: Recording) -> Costs:
    """What there is to say of a recording."""
    sites: dict[tuple[str, str], SiteCosts] = {}
    last: defaultdict[int, float] = defaultdict(float)
    late_of: defaultdict[int, float] = defaultdict(float)
    in_flight: defaultdict[tuple[tuple[str, str], int], list[Call]] = defaultdict(list)
    own = _own(recording.calls)
    late = dict(_late(recording.calls, own))
    for call in recording.calls:
        key = call.kind, call.site
        of = sites.setdefault(key, SiteCosts(*key))
        of.calls += 1
        of.exposed += total(own[call])
        in_flight[key, call.rank].append(call)
        if call in late:
            seconds, rank = late[call]
            of.late += seconds
            last[rank] += seconds
            late_of[call.rank] += seconds
    for (key, _), calls in in_flight.items():
        sites[key].hidden += _hidden(calls)
    by_rank = recording.by_rank
    ranks = []
    for rank, span in recording.spans.items():
        exposed, hidden = total(within(_exposed(by_rank[rank]), span)), _hidden(by_rank[rank], span)
        ranks.append(RankCosts(rank, span[1] - span[0], exposed, late_of[rank], hidden))
    return Costs(ranks, sorted(sites.values(), key=lambda each: -each.exposed), last)


def _exposed(calls: Iterable[Call]) -> list[Span]:
    return union(each for call in calls for each in call.exposed)


def _hidden(calls: Sequence[Call], window: Span = (-inf, inf)) -> float:
    """How long some of them were under way while the program was in none of them."""
    exposed = _exposed(calls)  # a wait may end later than the call
    either = union([*exposed, *(call.under_way for call in calls)])
    return total(within(either, window)) - total(within(exposed, window))


def _own(calls: Iterable[Call]) -> dict[Call, list[Span]]:
    """When the program was in each call. A wait for several counts for the first one that was complete."""
    own: dict[Call, list[Span]] = {}
    taken: dict[int, float] = defaultdict(float)
    for call in sorted(calls, key=lambda each: each.complete):
        own[call] = union([*call.in_method, *within(call.waits, (taken[call.rank], inf))])
        taken[call.rank] = max([taken[call.rank], *(until for _, until in call.waits)])
    return own


def _late(calls: Sequence[Call], own: Mapping[Call, list[Span]]) -> Iterator[tuple[Call, tuple[float, int]]]:
    """Of each collective, how long the rank was in it before the last rank had come that it needs, and which rank that
    was. The same of each receive whose send is known."""
    by_number: defaultdict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
    for call in calls:
        if call.number is not None:
            by_number[call.communicator.name, call.number][call.rank] = call
    for of_ranks in by_number.values():
        for call in of_ranks.values():
            needed = [of_ranks[rank] for rank in _needed(call) if rank in of_ranks]
            if needed:
                latest = max(needed, key=lambda each: each.issued)
                yield call, _before(own[call], latest)
    sends, receives = defaultdict(list), defaultdict(list)
    for call in calls:
        ranks = call.communicator.ranks
        if len(call.targets) == 1:
            sends[call.communicator, call.rank, ranks[call.targets[0]], call.target_tag].append(call)
        if len(call.sources) == 1:
            receives[call.communicator, ranks[call.sources[0]], call.rank, call.source_tag].append(call)
    for way, received in receives.items():
        if len(sends[way]) == len(received):  # else some were outside of the recording, or any tag was asked for
            for call, sent in zip(received, sends[way], strict=True):
                yield call, _before(own[call], sent)


def _before(exposed: list[Span], other: Call) -> tuple[float, int]:
    """How long the program was in a call before another rank has begun what it needs, and that rank."""
    return total(within(exposed, (-inf, other.issued))), other.rank


def _needed(call: Call) -> set[int]:
    """The other ranks of the job without which the collective cannot end on this one."""
    ranks, table = call.communicator.ranks, COLLECTIVES.get(call.collective)
    if table is None or (table.rooted and call.root is None):  # not all ranks of an alltoallv need give something
        return set()
    needs = table.needs(ranks.index(call.rank), len(ranks), call.root or 0)
    return {ranks[each] for each in needs} - {call.rank}
