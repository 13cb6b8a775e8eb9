"""What the coordinator knows of a job: its processes, and its communicators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mpicoll.supervise.agent import HashOf, StatusOf
from mpicoll.supervise.messages import Process, Question, RankStatus
from mpicoll.supervise.report import Missing, Silence, instead
from mpicoll.supervise.watched import SHORT
from mpicoll.supervise.wire import Questions, say

SECONDS_TO_ANSWER = 3.0
_LOOKS = 6
"""How often it looks meanwhile. If its own process was stopped for a while, it reads then what has come."""

A = TypeVar("A")


@dataclass(eq=False)
class RankProcess:
    """A process that is connected, or was."""

    writer: asyncio.StreamWriter
    process: Process
    left: float | None = None  # seconds since it has told that it leaves, None before that
    serves: int = 0  # whether messages may come from it, or be taken by it, though it leaves
    silent: float = 0.0
    """Seconds since it was heard. Time in which the coordinator's own process was stopped does not count."""
    gone: float | None = None  # seconds since its connection was lost, None while it is there


class Processes(dict[int, RankProcess]):
    """By their ranks in the job's world. ``last_call`` says what a rank called last, as far as that is known here."""

    def __init__(self, last_call: Callable[[int], str]) -> None:
        super().__init__()
        self._last_call = last_call
        self.questions = Questions()

    def tell(self, rank: int, message: object) -> None:
        say(self[rank].writer, message)

    async def ask(
        self, ranks: Iterable[int], question: Question[A], seconds: float = SECONDS_TO_ANSWER
    ) -> dict[int, A]:
        """The ranks' answers, as far as they come in time. Time in which this process was stopped does not count."""
        there = [rank for rank in ranks if rank in self and self[rank].gone is None]
        asked = {rank: self.questions.put(self[rank].writer, question) for rank in there}
        for _ in range(_LOOKS):
            if not all(answer.done() for answer in asked.values()):
                await asyncio.wait(asked.values(), timeout=seconds / _LOOKS)
        answers = {rank: answer.result() for rank, answer in asked.items() if answer.done()}
        for answer in asked.values():
            answer.cancel()
        return answers

    async def statuses(
        self, each: CommunicatorState, number: int | None, seconds: float = SECONDS_TO_ANSWER
    ) -> tuple[dict[int, RankStatus], dict[int, Missing]]:
        """What the ranks of a communicator say of this call (None: of their last ones), and why some say nothing."""
        answers = await self.ask(each.ranks, StatusOf(each.name, number), seconds)
        statuses = {rank: answer for rank, answer in answers.items() if answer is not None}
        missing: dict[int, Missing] = {}
        for rank in [rank for rank in each.ranks if rank not in statuses]:
            if rank in answers:
                missing[rank] = Silence.DOES_NOT_KNOW
            elif rank not in self:
                missing[rank] = Silence.NEVER_REACHED
            elif self[rank].gone is not None:
                missing[rank] = self.with_last_call(Silence.HAS_ENDED, rank)
            elif seconds < SECONDS_TO_ANSWER:
                missing[rank] = self.with_last_call(Silence.HAD_NO_TIME, rank)
            else:
                missing[rank] = Silence.DOES_NOT_ANSWER
        return statuses, missing

    def with_last_call(self, why: Missing, rank: int) -> Missing:
        """Why a rank says nothing, and what it called last."""
        call = self._last_call(rank)
        return f"{instead(why)}; its last collective: {call}" if call else why

    async def hashes(
        self, name: str, ranks: Sequence[int], calls: int | None = None, seconds: float = SECONDS_TO_ANSWER
    ) -> tuple[int, set[str]]:
        """The different hashes that these ranks have of so many first ``calls`` of a communicator, or of all that each
        has begun, and before them the number of calls. Empty if there are none, or if a rank does not know its own."""
        answers = await self.ask(ranks, HashOf(name, calls), seconds)
        known = [answer for answer in answers.values() if answer is not None]
        if not known or len(known) < len(ranks):
            return 0, set()
        least, most = min(known)[0], max(known)[0]
        return (least, {each for _, each in known}) if least == most else await self.hashes(name, ranks, least, seconds)

    async def first_difference(self, name: str, ranks: Sequence[int], equal: int, different: int) -> int | None:
        """The number of the first call that is not the same on all of these ranks of a communicator, whose first calls
        are ``equal`` or ``different`` if they are so many. None if it was so long ago that ranks have forgotten it."""
        known = True
        while different - equal > 1:
            middle = (equal + different) // 2
            _, hashes = await self.hashes(name, ranks, middle)
            if len(hashes) > 1:
                different = middle
            else:
                equal, known = middle, bool(hashes)
        return different - 1 if known else None

    def time_passes(self, seconds: float) -> None:
        """For so many more seconds, nobody was heard, and those that leave or are gone were away."""
        for each in self.values():
            each.silent += seconds
            each.left = None if each.left is None else each.left + seconds
            each.gone = None if each.gone is None else each.gone + seconds


@dataclass(eq=False)
class CommunicatorState:
    """A communicator: what each of its ranks has told, by their ranks in the world."""

    name: str
    ranks: list[int] = field(default_factory=list)
    calls: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    timeout: float = 0.0  # seconds that a call may take
    compared: int = 0  # how many first calls are known to be the same on all ranks
    comparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    warned: bool = False

    def least(self) -> int:
        """How many calls all ranks have told of."""
        return min(self.calls.get(rank, 0) for rank in self.ranks)

    def most(self) -> int:
        return max(self.calls.values(), default=0)

    def are(self, *states: str) -> bool:
        return any(state in states for state in self.states.values())

    def longest(self) -> int:
        return max(self.waits.values(), default=SHORT)
