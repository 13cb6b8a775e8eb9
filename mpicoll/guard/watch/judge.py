"""The judge of a job, in the process of its first rank: it knows what all ranks have told, and ends the job if they
cannot go on together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mpicoll.guard.recorder import BROKEN, FREED
from mpicoll.guard.watch import ending, report
from mpicoll.guard.watch.channel import Message, happens, heard, say
from mpicoll.guard.watch.watched import LOOK, SHORT, TIME_IS_UP, WARN
from mpicoll.launch.elastic import is_elastic

__all__ = ["Judge"]

_SECONDS_TO_ANSWER = 3.0
_SECONDS_OF_THE_LAUNCHER = 5.0
"""How long a launcher may take to end a job of which a process has ended."""


@dataclass(eq=False)
class _Process:
    """A process that is connected, or was."""

    writer: asyncio.StreamWriter
    process: Message
    leaving: bool = False
    gone: float | None = None
    """When its connection was lost, None while it is there."""


@dataclass(eq=False)
class _Calls:
    """A communicator: what each of its ranks has told, by their ranks in the world."""

    name: str
    ranks: list[int] = field(default_factory=list)
    calls: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    compared: int = 0
    """So many first calls are known to be the same on all ranks."""
    comparing: bool = False
    warned: bool = False

    def broken(self) -> bool:
        return BROKEN in self.states.values()


class Judge:
    """Knows all processes of the job by their ranks in its world."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._processes: dict[int, _Process] = {}
        self._communicators: dict[str, _Calls] = {}
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        self._lost: set[int] = set()
        """Ranks that are lost, in a job that goes on without them."""
        self._leaving = asyncio.Event()
        """Set when a process tells that it leaves, so that it need not wait for the next look."""

    # -- what comes from the processes --------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its begin to its end."""
        hello = await heard(reader)
        if hello is None or hello.get("token") != self._token:
            writer.close()
            return
        rank = hello["rank"]
        here = self._processes[rank] = _Process(writer, hello["process"])
        say(writer, {"judge": ending.this_process()})
        if self._lost:
            say(writer, {"lost": sorted(self._lost)})
        while (message := await heard(reader)) is not None:
            if "answer" in message:
                if not (question := self._questions.pop(message["answer"], asyncio.Future())).done():
                    question.set_result(message["value"])
            elif "compare" in message:
                self._begin(self._compare_for(here, message["compare"]))
            elif "lost" in message:
                self._lose(message["lost"])
            else:
                self._told(rank, message)
        here.gone = asyncio.get_running_loop().time()
        if is_elastic() and not here.leaving:
            self._lose([rank])

    def _lose(self, ranks: Iterable[int]) -> None:
        """Forget the communicators of these ranks, and let all processes cut them."""
        new = {*ranks} - self._lost
        self._lost |= new
        for name, each in list(self._communicators.items()):
            if new.intersection(each.ranks):
                del self._communicators[name]
        for process in self._processes.values():
            say(process.writer, {"lost": sorted(new)})
        self._leaving.set()

    def _told(self, rank: int, message: Message) -> None:
        if message["leaving"]:
            self._processes[rank].leaving = True
            self._leaving.set()
        for name, calls, state, wait, *ranks in message["states"]:
            each = self._communicators.setdefault(name, _Calls(name))
            each.calls[rank], each.states[rank], each.waits[rank] = calls, state, wait
            if ranks and not self._lost.intersection(ranks[0]):
                each.ranks = ranks[0]
            if wait == SHORT:
                each.warned = False

    def _begin(self, task: Any) -> None:
        running = asyncio.create_task(task)
        self._tasks.add(running)  # asyncio itself keeps only weak references
        running.add_done_callback(self._tasks.discard)

    async def _ask(self, ranks: Iterable[int], what: str, **more: Any) -> dict[int, Any]:
        """The ranks' answers. A rank that does not answer in time is not in it."""
        futures: dict[int, asyncio.Future[Any]] = {}
        for rank in ranks:
            if rank in self._processes and self._processes[rank].gone is None:
                self._asked += 1
                futures[rank] = self._questions[self._asked] = asyncio.get_running_loop().create_future()
                say(self._processes[rank].writer, {"ask": self._asked, "what": what, **more})
        if futures:
            await asyncio.wait(futures.values(), timeout=_SECONDS_TO_ANSWER)
        return {rank: future.result() for rank, future in futures.items() if future.done()}

    # -- what it does -------------------------------------------------------------------------------------------------

    async def look_on(self) -> None:
        """Judge again and again what is known. Returns when all processes have left."""
        while not self._all_have_left():
            await happens(self._leaving, LOOK)
            self._leaving.clear()
            for each in list(self._communicators.values()):
                if each.ranks and not each.comparing and not self._ending:
                    await self._judge(each)
        for process in self._processes.values():
            say(process.writer, {"leave": True})
        for process in self._processes.values():
            process.writer.close()

    def _all_have_left(self) -> bool:
        expected = {rank for each in self._communicators.values() for rank in each.ranks}
        return (
            bool(self._processes)
            and expected <= self._processes.keys()
            and all(p.leaving or p.gone is not None or rank in self._lost for rank, p in self._processes.items())
            and not any(self._is_to_be_judged(each) for each in self._communicators.values())
            and not self._tasks
        )

    def _is_to_be_judged(self, each: _Calls) -> bool:
        """Whether some calls are not known to be the same, though all ranks have told of them."""
        if each.broken() or not each.ranks:
            return False
        told = [each.calls.get(rank, 0) for rank in each.ranks]
        return min(told) > each.compared or (max(told) > min(told) and not self._lost(each))

    def _lost(self, each: _Calls) -> list[int]:
        return [rank for rank in each.ranks if (p := self._processes.get(rank)) is not None and p.gone is not None]

    async def _judge(self, each: _Calls) -> None:
        waits = max(each.waits.values(), default=SHORT)
        if waits == TIME_IS_UP:
            await self._end(each, None, report.TIME_IS_UP)
            return
        if waits >= WARN and not each.warned:
            each.warned = True
            self._begin(self._warn(each))
        if each.broken() or each.name not in self._communicators:
            return
        if min(each.calls.get(rank, 0) for rank in each.ranks) > each.compared:
            await self._compare(each)
        if each.name not in self._communicators:
            return
        told = {rank: each.calls.get(rank, 0) for rank in each.ranks}  # now: ranks may have told more meanwhile
        most = max(told.values())
        now = asyncio.get_running_loop().time()
        for rank, process in self._processes.items():
            if told.get(rank, most) < most:
                if process.leaving:
                    await self._end(each, told[rank], report.HAS_LEFT)
                elif process.gone is not None and now - process.gone > _SECONDS_OF_THE_LAUNCHER:
                    await self._end(each, told[rank], report.IS_GONE)
        if all(each.states.get(rank) == FREED for rank in each.ranks) and each.compared == most:
            del self._communicators[each.name]
            for rank in each.ranks:
                say(self._processes[rank].writer, {"forget": each.name})

    async def _compare_for(self, asking: _Process, name: str) -> None:
        each = self._communicators.get(name)
        if each is not None and each.ranks and not each.comparing:
            await self._compare(each)
        say(asking.writer, {"compared": name})

    async def _compare(self, each: _Calls) -> None:
        """Compare the calls that all ranks have begun. If they differ, this ends the job."""
        each.comparing = True
        try:
            begun = await self._ask(each.ranks, "calls", name=each.name)
            if len(begun) < len(each.ranks) or None in begun.values():
                return
            calls = min(begun.values())
            for _ in range(2):  # again, if a rank has forgotten so many
                answers = await self._ask(each.ranks, "hash", name=each.name, calls=calls)
                if len(answers) < len(each.ranks) or None in answers.values():
                    return
                hashes = {tuple(answer) for answer in answers.values()}
                if len(hashes) == 1:
                    each.compared = max(each.compared, calls)
                    return
                calls = min(known for known, _ in hashes)
            if len({known for known, _ in hashes}) == 1:
                await self._end(each, await self._first_difference(each), report.DIFFERENT)
        finally:
            each.comparing = False

    async def _first_difference(self, each: _Calls) -> int:
        """The number of the first call that is not the same on all ranks, as far as they still know it."""
        answers = await self._ask(each.ranks, "digests", name=each.name, first=each.compared)
        start: int = max(first for first, _ in answers.values())
        columns = zip(*(digests[start - first :] for first, digests in answers.values()), strict=False)
        different = (number for number, column in enumerate(columns, start) if len(set(column)) > 1)
        return next(different, start)

    async def _accounts(self, each: _Calls, number: int | None) -> tuple[dict[int, Message], dict[int, str]]:
        """What the ranks say of a call, and why some say nothing."""
        accounts = await self._ask(each.ranks, "account", name=each.name, number=number)
        missing = {}
        for rank in each.ranks:
            process = self._processes.get(rank)
            if rank not in accounts or accounts[rank] is None:
                accounts.pop(rank, None)
                missing[rank] = report.why_silent(process is not None, process is not None and process.gone is not None)
            elif process is not None and process.leaving:
                accounts[rank]["leaving"] = True
        return accounts, missing

    async def _warn(self, each: _Calls) -> None:
        accounts, missing = await self._accounts(each, None)
        if any(account["seconds"] > 0 for account in accounts.values()):
            _print(report.text(report.SLOW, each.ranks, accounts, missing))

    async def _end(self, each: _Calls, number: int | None, why: str) -> None:
        """Say why, let all processes write their files, and end the job. Does not return. In a job that goes on when
        ranks are lost, end the calls of this communicator instead, as far as that may help."""
        self._ending = True
        accounts, missing = await self._accounts(each, number)
        text = report.text(why, each.ranks, accounts, missing)
        _print(text)
        written = await self._ask(self._processes, "dump", why=why)
        _print(report.files(written))
        silent = [self._processes[rank].process for rank in missing if rank in self._processes]
        if is_elastic() and why in (report.TIME_IS_UP, report.DIFFERENT):
            del self._communicators[each.name]
            said = [[each.ranks.index(rank), account["words"] or "no call"] for rank, account in accounts.items()]
            failed = {"fail": each.name, "differ": why == report.DIFFERENT, "calls": said, "text": text, "silent": silent}
            for process in self._processes.values():
                say(process.writer, failed)
            self._ending = False
            return
        for process in self._processes.values():
            say(process.writer, {"end": silent})
        await asyncio.sleep(0.1)  # until they are on their way
        ending.end(silent)


def _print(text: str) -> None:
    """To stderr, though another thread may hold Python's own lock of it."""
    if text:
        os.write(2, text.encode(errors="replace") + b"\n")
