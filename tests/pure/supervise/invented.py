"""A job of invented communicators in one event loop: a coordinator and its agents, and no MPI. Time passes faster
here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import pytest

from mpicoll.supervise import agent, coordinator, deadlock, ending, ranks, wire
from mpicoll.supervise.agent import Agent
from mpicoll.supervise.coordinator import Coordinator
from mpicoll.supervise.messages import Ends, Files, Process, RankStatus
from mpicoll.supervise.record import OPEN, Record, Recorder, Waits
from mpicoll.supervise.rendezvous import Rendezvous, listen
from mpicoll.supervise.sites import is_program
from mpicoll.supervise.watched import LOOK, Watched
from mpicoll.supervise.wire import LIMIT

is_program(__file__)  # from now on this is known, so that the first call that is made here looks like all others
FASTER = 50
ends: list[list[Process]] = []
"""Each end of a job, with the processes that do not answer."""


def let_time_fly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look counts as half a second, and comes after a few milliseconds. No end of a job ends this process."""
    for module in (coordinator, agent):
        monkeypatch.setattr(module, "happens", _soon)
    for limit in ("_SECONDS_TO_CONNECT", "_SECONDS_TO_BE_GREETED"):
        monkeypatch.setattr(wire, limit, 600.0)  # other tests may have the cores meanwhile
    monkeypatch.setattr(deadlock, "_SECONDS_TO_SEE", 2.0 / FASTER)
    monkeypatch.setattr(ending, "end", ends.append)
    monkeypatch.setattr(ending, "prepare_to_end", lambda silent: None)
    monkeypatch.setattr(agent, "is_first", lambda what: True)
    ends.clear()


def give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator does not wait so long for an answer that never comes."""
    asked = ranks.Processes.ask

    async def ask(self: Any, of: Any, question: Any, seconds: float = 1.0) -> Any:
        return await asked(self, of, question, min(seconds, 1.0))

    monkeypatch.setattr(ranks.Processes, "ask", ask)


async def _soon(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds / FASTER)
    return event.is_set()


class Rank:
    """A process, with the recorders of its communicators."""

    def __init__(self, rank: int, rendezvous: Rendezvous, tasks: asyncio.TaskGroup) -> None:
        self.agent = Agent(rank, rendezvous, lambda why, since: Files("", ""))
        self._tasks = [tasks.create_task(self.agent.serve()), tasks.create_task(self.agent.look_on())]

    def joins(self, name: str, ranks: list[int], timeout: float = 600.0, agrees: bool = False) -> Recorder:
        recorder = Recorder()
        self.agent.watched[name] = Watched(name, ranks, recorder, Waits(), timeout, agrees)
        return recorder

    async def is_lost(self) -> None:
        """As if its process were killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        assert self.agent.writer is not None
        self.agent.writer.transport.abort()

    def ended(self) -> bool:
        return all(task.done() for task in self._tasks)


class Job:
    """A coordinator, and ranks that have one communicator of all, ``c``."""

    def __init__(self, size: int, timeout: float, tasks: asyncio.TaskGroup) -> None:
        self._sock, self.rendezvous = listen(True)
        self.coordinator = Coordinator(self.rendezvous.token, tasks)
        self._tasks, self._timeout, self.all = tasks, timeout, [*range(size)]
        self.ranks: list[Rank] = []
        self.recorders: list[Recorder] = []

    async def start(self, ranks: int) -> None:
        self.server = await asyncio.start_server(
            lambda r, w: self._tasks.create_task(self.coordinator.serve(r, w)), sock=self._sock, limit=LIMIT
        )
        self.looking = self._tasks.create_task(self.coordinator.look_on())
        for _ in range(ranks):
            self.add()

    def add(self) -> None:
        rank = Rank(len(self.ranks), self.rendezvous, self._tasks)
        self.ranks.append(rank)
        self.recorders.append(rank.joins("c", self.all, self._timeout))

    async def connect(self, rank: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Process]:
        """As a process without an agent."""
        where = self.rendezvous
        return await wire.connect(where.addresses, where.port, where.token, rank)

    def make(self, words: str = "barrier", *others: str, times: int = 1) -> None:
        """Rank r makes the r-th of these calls, or the first one."""
        for r, recorder in enumerate(self.recorders):
            for _ in range(times):
                begin(recorder, others[r - 1] if 0 < r <= len(others) else words)
                recorder.under_way = False

    def told(self, communicators: int) -> bool:
        """Whether all ranks have told of so many communicators."""
        known = self.coordinator._communicators.values()
        return len(known) == communicators and all(each.ranks and len(each.calls) == len(self.all) for each in known)

    def compared(self) -> int:
        return self.coordinator._communicators["c"].compared if "c" in self.coordinator._communicators else 0

    async def all_leave(self) -> None:
        for rank in self.ranks:
            rank.agent.leave()
        await until(lambda: self.looking.done() or bool(ends))


def status(**given: Any) -> RankStatus:
    """What a rank says that waits in a barrier."""
    usual: dict[str, Any] = {"begun": 4, "state": OPEN, "number": 3, "description": "barrier", "site": "a.py:1 in f"}
    usual |= {"root": None, "ahead": 0, "waits": True, "message": None, "handles": "", "failed": "", "leaving": False}
    usual |= {"ends": Ends(**{name: given.pop(name) for name in Ends.fields if name in given})}
    usual |= {"alone": True, "under_way": False}
    usual |= {"unreceived": [], "locks": [], "ago": 5.0, "seconds": 5.0, "stuck": 5.0, "where": "a.py:2 in g"}
    usual |= given
    usual["operation"] = (usual["description"] or "").partition(" ")[0]
    return RankStatus(**usual)


def begin(recorder: Recorder, words: str) -> None:
    operation, _, details = words.partition(" ")
    recorder.begin(Record(operation, details))


async def until(what: Callable[[], bool]) -> None:
    """It waits 30 s on a quiet machine, and as many turns where other tests have the cores."""
    for _ in range(6000):
        if what():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


async def looks(count: int) -> None:
    """So many looks of all, and some more."""
    await asyncio.sleep(count * LOOK / FASTER * 1.5)


@asynccontextmanager
async def job(size: int = 3, started: int | None = None, timeout: float = 600.0) -> AsyncIterator[Job]:
    async with asyncio.TaskGroup() as tasks:
        it = Job(size, timeout, tasks)
        await it.start(size if started is None else started)
        known = it.coordinator._processes  # no rank makes calls before it is known
        await until(lambda: all(rank.agent.reached.done() and rank.agent.rank in known for rank in it.ranks))
        yield it
        for rank in it.ranks:
            rank.agent.leave()
        it.coordinator.dismiss()
        it.server.close()


def scene(**given: Any) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """A decorator of a test that happens in a job, ``it``, whose ranks leave at its end. ``given`` says which job.
    One that does not end by itself in the test does not when they leave, either."""

    def decorated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        async def play(**fixtures: Any) -> None:
            async with job(**given) as it:
                await test(it=it, **fixtures)
                ended = bool(ends)
            assert ended or not ends

        found = signature(test)

        @wraps(test)
        def played(monkeypatch: pytest.MonkeyPatch, **fixtures: Any) -> None:
            let_time_fly(monkeypatch)
            own = {"monkeypatch": monkeypatch} if "monkeypatch" in found.parameters else {}
            asyncio.run(play(**fixtures, **own))

        fixtures = [each for name, each in found.parameters.items() if name not in ("it", "monkeypatch")]
        fixtures.append(Parameter("monkeypatch", Parameter.KEYWORD_ONLY))
        played.__signature__ = found.replace(parameters=fixtures)  # type: ignore[attr-defined]  # what pytest gives it
        return played

    return decorated
