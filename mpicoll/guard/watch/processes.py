"""The processes of a job, as the judge knows them: who is connected, how long one is silent, and what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from mpicoll.guard.watch import codec
from mpicoll.guard.watch.channel import say
from mpicoll.guard.watch.protocol import Answer, Ask, Process, Question

SECONDS_TO_ANSWER = 3.0
_LOOKS = 6
"""How often the judge looks meanwhile. If its process is stopped for a while, perhaps with the whole machine, it reads
in the next look what has come."""

A = TypeVar("A")


@dataclass(eq=False)
class Connected:
    """A process that is connected, or was."""

    writer: asyncio.StreamWriter
    process: Process
    left: float | None = None
    """Seconds since it has told that it leaves, None before that."""
    serves: bool = False
    """Whether messages may come from it, or be taken by it, though it leaves."""
    silent: float = 0.0
    """Seconds since it was heard. Time in which the judge's own process was stopped does not count."""
    gone: float | None = None
    """Seconds since its connection was lost, None while it is there."""


class Processes(dict[int, Connected]):
    """By their ranks in the job's world."""

    def __init__(self) -> None:
        super().__init__()
        self._questions: dict[int, tuple[Any, asyncio.Future[Any]]] = {}
        """Those that are not answered, by their numbers: the type of the answer, and where it is awaited."""
        self._asked = 0

    def tell(self, rank: int, message: object) -> None:
        """Send a message to one process."""
        say(self[rank].writer, message)

    def tell_all(self, message: object) -> None:
        """Send a message to each process."""
        for process in self.values():
            say(process.writer, message)

    async def ask(
        self, ranks: Iterable[int], question: Question[A], seconds: float = SECONDS_TO_ANSWER
    ) -> dict[int, A]:
        """The ranks' answers. A rank that does not answer in time is not in it. Time in which the judge's own process
        was stopped does not count."""
        asked: dict[int, asyncio.Future[A]] = {}
        numbers = []
        for rank in ranks:
            if rank in self and self[rank].gone is None:
                self._asked += 1
                numbers.append(self._asked)
                asked[rank] = asyncio.get_running_loop().create_future()
                self._questions[self._asked] = question.answer(), asked[rank]
                self.tell(rank, Ask(self._asked, question))  # type: ignore[arg-type]  # it is one of those
        for _ in range(_LOOKS):
            if not all(answer.done() for answer in asked.values()):
                await asyncio.wait(asked.values(), timeout=seconds / _LOOKS)
        for number in numbers:
            self._questions.pop(number, None)
        return {rank: answer.result() for rank, answer in asked.items() if answer.done()}

    def take(self, answer: Answer) -> None:
        """An answer has come, perhaps too late. One that does not fit the question is none."""
        kind, awaited = self._questions.pop(answer.number, (None, None))
        if awaited is not None:
            with suppress(ValueError):
                awaited.set_result(codec.read(answer.value, kind))

    def time_passes(self, seconds: float) -> None:
        """For so many more seconds, nobody was heard, and those that leave or are gone were away."""
        for process in self.values():
            process.silent += seconds
            if process.left is not None:
                process.left += seconds
            if process.gone is not None:
                process.gone += seconds
