"""How the judge finds ranks that wait for ever: it asks those that have waited for long, twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mpicoll.guard.recorder import BROKEN, CLOSED
from mpicoll.guard.watch.calls import Calls
from mpicoll.guard.watch.processes import Processes
from mpicoll.guard.watch.protocol import AccountOf
from mpicoll.guard.watch.report import Why
from mpicoll.guard.watch.stuck import Begun, Wait, stuck
from mpicoll.guard.watch.watched import LATE, SHORT

_SECONDS_TO_SEE = 2.0
"""How long a rank that runs may take to see what has come for it."""
_SECONDS_ON_A_NETWORK = 180.0
"""How long a message may be on its way between nodes. After an outage, TCP may wait as long again before it sends."""


class Deadlocks:
    """Among the processes and the communicators of a job, as the judge knows them."""

    def __init__(self, processes: Processes, communicators: Mapping[str, Calls]) -> None:
        self._processes, self._communicators = processes, communicators

    def are_due(self) -> bool:
        """Whether some rank has waited for so long that those that wait should be asked."""
        known = self._known()
        patience = self._patience() if known else 0.0  # this looks at all processes, and mostly nobody waits
        late = [each for each in known if each.is_late(patience)]  # each of them notes that it was asked
        return bool(late)

    async def found(self) -> tuple[Calls, Why, set[int]] | None:
        """A communicator in which ranks wait for ever, why, and which ranks. None if nobody does as far as is known."""
        before, begun = await self._late()
        if not stuck(before, begun, self._left()):
            return None
        # A rank that was stopped may have got what it waits for meanwhile, and not have seen it yet.
        await asyncio.sleep(_SECONDS_TO_SEE)
        (now, begun), left = await self._late(), self._left()
        same = {r: wait for r, wait in now.items() if r in before and wait.goes_on(before[r], _SECONDS_TO_SEE)}
        ranks = stuck(same, begun, left)
        waits = [same[rank] for rank in sorted(ranks)]
        where = self._communicators.get(waits[0].communicator) if waits else None
        if where is None:  # or it has ended meanwhile
            return None
        why = Why.HAS_LEFT if any(left & wait.others for wait in waits) else Why.STUCK
        return where, why, {rank for rank in ranks if same[rank].communicator == where.name}

    def _known(self) -> list[Calls]:
        """The communicators in which some rank waits. Where a call has ended midway, nobody knows what others wait
        for."""
        waits = [each for each in self._communicators.values() if each.ranks and each.longest() != SHORT]
        return [each for each in waits if not each.are(BROKEN, CLOSED)]

    def _patience(self) -> float:
        """How long a wait lasts until nobody expects anything to come that was sent before. On a slow network, messages
        may be on their way for long."""
        hosts = {process.process.host for process in self._processes.values()}
        return LATE if len(hosts) == 1 else _SECONDS_ON_A_NETWORK

    async def _late(self) -> tuple[dict[int, Wait], Begun]:
        """What those ranks wait for that have waited for long, and how many calls they have begun."""
        known, patience = self._known(), self._patience()
        waiting = {rank for each in known for rank, wait in each.waits.items() if wait != SHORT}
        asked = [self._processes.ask(waiting & {*each.ranks}, AccountOf(each.name, None)) for each in known]
        waits: dict[int, list[Wait]] = {}
        begun: dict[str, dict[int, int]] = {}
        for each, answers in zip(known, await asyncio.gather(*asked), strict=True):
            begun[each.name] = {}
            for rank, account in answers.items():
                if account is not None:
                    begun[each.name][rank] = account.begun
                    waits.setdefault(rank, []).extend([Wait(each.name, account)] if account.seconds > 0 else [])
        # Of two waits, one within the other, nobody knows which one keeps the rank.
        alone = {rank: found[0] for rank, found in waits.items() if len(found) == 1}
        return {rank: wait for rank, wait in alone.items() if wait.account.stuck >= patience}, begun

    def _left(self) -> set[int]:
        """The ranks that do nothing more, and whose last messages have arrived."""
        patience, those = self._patience(), self._processes.items()
        return {rank for rank, each in those if each.left is not None and each.left >= patience and not each.serves}
