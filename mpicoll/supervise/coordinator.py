"""The coordinator of a job knows what all ranks have told, and ends the job if they cannot go on together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from mpicoll.launch import board
from mpicoll.supervise import agent, deadlock, ending, report
from mpicoll.supervise import messages as msg
from mpicoll.supervise.dump import kept_by_all
from mpicoll.supervise.ranks import SECONDS_TO_ANSWER, CommunicatorState, Processes, RankProcess
from mpicoll.supervise.record import BROKEN, CLOSED, FREED, OPEN
from mpicoll.supervise.report import Silence, Why
from mpicoll.supervise.trace import Traces
from mpicoll.supervise.watched import LATE, LONG, LOOK, SHORT, TIME_IS_UP, WARN, patience_at_end
from mpicoll.supervise.wire import LIMIT, greeted, happens, heard

if TYPE_CHECKING:
    from mpicoll.supervise.host import Host

_SECONDS_FOR_OTHERS, _LOOKS_FOR_OTHERS = 1.0, 10
"""How long a rank whose call has failed waits for others to come to that call, and how often the coordinator looks."""
_SECONDS_OF_A_FAILURE = 5.0
"""How long others wait in a call that has ended midway on a rank, until nobody expects them to come out of it."""
_SECONDS_TO_FOLLOW = 2.0
"""How long others have to come to their ends, too, when a rank has: the report names those that do what few do."""
_SECONDS_OF_A_LOSS = 0.1  # what ranks have to say what they do, when the launcher may end them at any time
_SECONDS_OF_THE_LAUNCHER = 5.0  # how long a launcher may take to end a job of which a process has ended


class Coordinator:
    """Knows all processes of the job. What takes long is done in ``tasks``. Only ``mpicoll run`` is a ``host``."""

    def __init__(self, token: str, tasks: asyncio.TaskGroup, host: Host | None = None) -> None:
        self._token, self._tasks, self._host = token, tasks, host
        self._outcome = None if host is None else host.outcome
        """Is told how ranks end, in a job that goes on when some are lost."""
        self.writers: set[asyncio.StreamWriter] = set()
        self._processes = Processes((board if host is None else host.board).last_call)
        self._traces = Traces(self._processes.ask, tasks)
        self._communicators: dict[str, CommunicatorState] = {}
        self._ending = False
        self._dismissed = asyncio.Event()  # set when nobody watches over the processes any more
        self._dumping = asyncio.Lock()
        self._dumps = 0  # how often all processes have begun to write their files
        self._said: set[str | Why] = set()
        self._leaving = asyncio.Event()
        """Set when a process tells that it leaves, so that it need not wait for the next look."""

    # -- what comes from the processes --------------------------------------------------------------------------------

    async def run(self, sock: socket.socket) -> None:
        """Serve all processes that connect to this socket, until they have left."""
        server = await asyncio.start_server(
            lambda reader, writer: self._tasks.create_task(self.serve(reader, writer)), sock=sock, limit=LIMIT
        )
        with closing(server):
            await self.look_on()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        hello = await greeted(reader, writer, self._token)
        if hello is not None and not self._dismissed.is_set():
            await self._serve_rank(hello, reader, writer)
        self.writers.discard(writer)
        writer.close()

    async def _serve_rank(self, hello: msg.Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = hello.rank
        here = self._processes[rank] = RankProcess(writer, hello.process)
        if self._outcome is not None:
            self._outcome.gone.discard(rank)
        while (message := await heard(reader)) is not None:
            here.silent = 0.0
            match message:
                case msg.Answer():
                    self._processes.questions.take(message)
                case agent.StatusUpdate():
                    self._update(rank, message)
                case msg.Ask(number, question):
                    self._tasks.create_task(self._answer(rank, number, question))
                case agent.Heartbeat():
                    self._processes.tell(rank, agent.Heartbeat())
        here.gone = 0.0
        if self._outcome is not None:
            self._outcome.gone.add(rank)
            for each in [*self._communicators.values()]:  # the others have cut them
                if rank in each.ranks:
                    del self._communicators[each.name]
            self._leaving.set()
        elif not (self._ending or self._dismissed.is_set() or self._dumps or here.left is not None):
            await self._say_loss(rank)

    async def _say_loss(self, rank: int) -> None:
        """Say what all ranks do when a process has ended too early. The launcher is about to end the others, too. If
        these have made different calls, the process may have crashed of that: MPI writes beyond its memory then."""
        host, exit_reason = self._host, ending.exit_reason(self._processes[rank].process)
        if Why.IS_LOST in self._said or (host.board.is_told() if host is not None else not exit_reason):
            return
        self._said.add(Why.IS_LOST)
        each = await self._without(rank, _SECONDS_OF_A_LOSS)
        if each is None:
            return
        others = [other for other in each.ranks if other != rank]
        number = None
        if len(others) > 1:  # one alone has nobody to differ from, and must hurry
            calls, hashes = await self._processes.hashes(each.name, others, seconds=_SECONDS_OF_A_LOSS)
            if len(hashes) > 1:
                number = await self._processes.first_difference(each.name, others, each.compared, calls)
        why = Why.IS_LOST if number is None else Why.DIFFERENT
        statuses, missing = await self._processes.statuses(each, number, _SECONDS_OF_A_LOSS)
        if host is not None:  # it has seen whether the launcher has ended this one because of another one
            first: Sequence[int] = ()
            for _ in range(_LOOKS_FOR_OTHERS):
                if first := host.monitor.first if host.monitor is not None else ():
                    break
                await asyncio.sleep(_SECONDS_OF_A_LOSS)
            if len(first) != 1 or first[0] not in {*each.ranks} & self._processes.keys():
                return
            if first[0] != rank:
                rank = first[0]
                exit_reason = ending.exit_reason(self._processes[rank].process)
            statuses.pop(rank, None)
            if not statuses:  # the launcher was faster: the board has more to say
                return
        if exit_reason:
            missing[rank] = self._processes.with_last_call(exit_reason, rank)
            known = rank if host is not None and why == Why.IS_LOST else None
            report.show(report.text(why, each.ranks, statuses, missing, first=known))
            self._said.add(Why.IS_GONE)
            if host is not None:  # in a rank, a launcher that ends the job may lose these words
                host.board.head.told = 1

    async def _without(self, rank: int, seconds: float = SECONDS_TO_ANSWER) -> CommunicatorState | None:
        """The communicator of this rank in which others wait, or in which they were last."""
        known = [each for each in self._communicators.values() if rank in each.ranks]
        if len(known) < 2:
            return known[0] if known else None
        ask = self._processes.ask
        asked = [ask({*each.ranks} - {rank}, agent.StatusOf(each.name, None), seconds) for each in known]
        tells = [max([a.tells for a in each.values() if a], default=()) for each in await asyncio.gather(*asked)]
        return known[tells.index(max(tells))]

    def _update(self, rank: int, update: agent.StatusUpdate) -> None:
        if update.failed:
            self.dismiss()
        if self._outcome is not None:
            self._outcome.code = self._outcome.code or update.code
        if update.trace:
            self._traces.add(rank, update.trace)
        if update.leaving and self._processes[rank].left is None:
            self._processes[rank].left, self._processes[rank].serves = 0.0, update.serves
            if self._outcome is not None:
                self._outcome.ended.add(rank)
                self._outcome.without.update(update.without)
            self._leaving.set()
        for state in update.states:
            each = self._communicators.setdefault(state.name, CommunicatorState(state.name))
            each.calls[rank], each.states[rank], each.waits[rank] = state.calls, state.state, state.wait
            each.timeout = state.timeout
            if state.ranks and not (self._outcome is not None and any(map(self._is_gone, state.ranks))):
                each.ranks = state.ranks

    async def _answer(self, asking: int, number: int, question: msg.Question[str]) -> None:
        failure = ""
        match question:
            case agent.Compare(name):
                await self._compare_for(asking, name)
            case agent.Dump(why):
                await self._dump_for(why)
            case agent.WriteRecording(file):
                failure = await self._traces.write_recording(asking, file, len(self._processes))
        self._processes.tell(asking, msg.Answer(number, failure))

    # -- what it does -------------------------------------------------------------------------------------------------

    async def look_on(self) -> None:
        """Check again and again what is known. Returns when all processes have left."""
        since_waits = 0.0
        while not self._dismissed.is_set() and (self._ending or not self._all_have_left()):
            if not await happens(self._leaving, LOOK):
                self._processes.time_passes(LOOK)
                since_waits += LOOK
            self._leaving.clear()
            await asyncio.gather(*(self._check(each) for each in [*self._communicators.values()] if each.ranks))
            if since_waits >= LATE:
                since_waits = 0.0
                await self._check_waits()
            await self._check_silence()
        await self._write_traces()
        self.dismiss()

    def dismiss(self) -> None:
        self._dismissed.set()
        lost = any(map(self._is_gone, self._processes))
        for rank in self._processes:
            self._processes.tell(rank, agent.Leave(lost))
        for writer in self.writers:
            writer.close()

    def _all_have_left(self) -> bool:
        expected = {rank for each in self._communicators.values() for rank in each.ranks}
        here = any(each.left is None and each.gone is None for each in self._processes.values())
        if here or not self._processes or not expected <= self._processes.keys():
            return False
        return not any(map(self._is_to_be_compared, self._communicators.values()))

    def _is_gone(self, rank: int) -> bool:
        return rank in self._processes and self._processes[rank].gone is not None

    def _is_to_be_compared(self, each: CommunicatorState) -> bool:
        """Whether some calls are not known to be the same, though all ranks have told of them."""
        if not each.ranks or each.are(BROKEN):
            return False
        gone = [gone for rank in each.ranks if (gone := self._processes[rank].gone) is not None]
        if gone:
            return max(gone) <= _SECONDS_OF_THE_LAUNCHER
        return each.least() > each.compared or (each.most() > each.least() and not each.are(CLOSED))

    async def _check(self, each: CommunicatorState) -> None:
        longest = each.longest()
        if longest == TIME_IS_UP:
            await self._end(each, None, Why.TIME_IS_UP)
        elif longest >= WARN and not each.warned:
            each.warned = True
            await self._warn(Why.SLOW, each)
        elif longest == SHORT:
            each.warned = False
        if each.least() > each.compared and not each.are(BROKEN):
            await self._compare(each)
        for rank in each.ranks:
            why = self._makes_no_more(each, rank)
            if why is not None and await self._is_missed(each, rank, why):
                midway = each.are(BROKEN, CLOSED)  # then the numbers of calls differ, and say nothing
                await self._end(each, None if midway else each.calls.get(rank, 0), why)
        if each.name not in self._communicators:
            return  # its ranks were lost meanwhile, or it has failed
        over = all(each.states.get(rank, OPEN) != OPEN for rank in each.ranks)
        if over and not self._ending and (each.are(BROKEN) or each.compared == each.most()):
            del self._communicators[each.name]
            for rank in each.ranks:
                self._processes.tell(rank, agent.Forget(each.name))

    def _makes_no_more(self, each: CommunicatorState, rank: int) -> Why | None:
        """Why the rank makes no more calls of this communicator, None if it may."""
        process = self._processes.get(rank)
        if process is None:
            return None
        if process.left is not None:
            return Why.HAS_LEFT if process.left >= _SECONDS_TO_FOLLOW else None
        if process.gone is not None:
            ends = self._outcome is None and process.gone > _SECONDS_OF_THE_LAUNCHER
            return Why.IS_GONE if ends else None
        if each.states.get(rank) == BROKEN and self._outcome is None:
            return Why.HAS_FAILED
        return Why.HAS_FREED if each.states.get(rank) == FREED else None

    async def _is_missed(self, each: CommunicatorState, rank: int, why: Why) -> bool:
        """Whether others make calls without this rank, which makes no more. Where a call has ended midway, or the rank
        has not told its last ones, numbers say nothing, and it counts whether they wait."""
        numbers = self._processes[rank].gone is None and not each.are(BROKEN, CLOSED)
        made = each.calls.get(rank, 0)
        if each.longest() == SHORT and (not numbers or made == each.most()):
            return False
        others = [other for other in each.ranks if other != rank]
        statuses = await self._processes.ask(others, agent.StatusOf(each.name, None))
        if why == Why.HAS_FAILED:  # while one of them has not come, the others may wait for that one
            there = [a for other, a in statuses.items() if a and each.states.get(other) == OPEN]
            return bool(there) and all(a.waits and a.stuck > _SECONDS_OF_A_FAILURE for a in there)
        return any(status.begun > made if numbers else status.waits for status in statuses.values() if status)

    async def _check_waits(self) -> None:
        if self._dismissed.is_set() or self._outcome is not None:
            return
        found = await deadlock.found(self._processes, self._communicators)
        if found is not None and found[0].name in self._communicators:
            each, why, ranks = found
            await self._end(each, None, why, ranks)

    async def _check_silence(self) -> None:
        """End the job if processes wait at their end for one that does not answer any more."""
        left = any(process.left is not None for process in self._processes.values())
        patience = patience_at_end(max((each.timeout for each in self._communicators.values()), default=0.0))
        for rank, process in [*self._processes.items()]:
            is_silent = left and process.gone is None and process.silent > patience
            if is_silent and (each := await self._without(rank)) is not None:
                await self._end(each, None, Why.IS_SILENT)

    async def _compare_for(self, asking: int, name: str) -> None:
        """Compare all calls of the rank that asks, for which others may have to come first."""
        for _ in range(_LOOKS_FOR_OTHERS):
            each = self._communicators.get(name)
            if each is not None and each.ranks:  # the first of them may not have told yet which they are
                await self._compare(each)
            if each is None or self._ending or each.compared >= each.calls.get(asking, 0):
                break
            await asyncio.sleep(_SECONDS_FOR_OTHERS / _LOOKS_FOR_OTHERS)

    async def _compare(self, each: CommunicatorState) -> None:
        async with each.comparing:
            calls, hashes = await self._processes.hashes(each.name, each.ranks)
            if len(hashes) == 1:
                each.compared = max(each.compared, calls)
            elif hashes:
                number = await self._processes.first_difference(each.name, each.ranks, each.compared, calls)
                await self._end(each, number, Why.FORGOTTEN if number is None else Why.DIFFERENT)

    async def _warn(self, why: Why, each: CommunicatorState) -> None:
        statuses, missing = await self._processes.statuses(each, None)
        if any(status.seconds > 0 for status in statuses.values()):
            report.show(report.text(why, each.ranks, statuses, missing))

    async def _dump(self, why: str) -> None:
        since = {each.name: kept_by_all(each.most()) for each in self._communicators.values()}
        self._say_once(report.files(await self._processes.ask(self._processes, agent.WriteFiles(why, since))))
        await self._write_traces(SECONDS_TO_ANSWER)

    async def _dump_for(self, why: str) -> None:
        """All ranks may ask at once. Files serve everybody who has asked before they were begun.

        A rank that fails asks for them. It may fail because others made another call, and it got what these sent."""
        before = self._dumps
        compared = [self._tasks.create_task(self._compare(each)) for each in self._communicators.values() if each.ranks]
        if compared:  # where a rank is stopped, this takes longer than the files may wait
            await asyncio.wait(compared, timeout=_SECONDS_FOR_OTHERS)
        async with self._dumping:
            if self._dumps == before:
                self._dumps += 1
                await self._dump(why)

    async def _write_traces(self, *seconds: float) -> None:
        if not self._dismissed.is_set():
            for said in await self._traces.write(*seconds):
                self._say_once(said)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            report.show(text)

    async def _end(self, each: CommunicatorState, number: int | None, why: Why, waiting: Iterable[int] = ()) -> None:
        """Say why, let all processes write their files, and end the job, unless one of those that are ``waiting`` no
        longer waits, or does not say so. Where ranks can be lost, a call may fail instead, on all ranks."""
        if self._ending or self._dismissed.is_set():
            return
        self._ending = True
        statuses, missing = await self._processes.statuses(each, number)
        if not all(rank in statuses and statuses[rank].seconds > 0 for rank in waiting):
            self._ending = False
            return
        job_ends = self._outcome is None or why not in (Why.TIME_IS_UP, Why.DIFFERENT)
        text = report.text(why, each.ranks, statuses, missing, number is None, job_ends)
        if why not in self._said:
            report.show(text)
        for other in [*self._communicators.values()]:  # ranks may wait for each other in two communicators
            if other is not each and other.ranks and other.longest() >= LONG:
                await self._warn(Why.MEANWHILE, other)
        await self._dump(why.said(job_ends))
        # A process that has ended is not among them: another program's may have its number by now.
        there = {rank: process.process for rank, process in self._processes.items() if process.gone is None}
        silent = [there.pop(rank) for rank in missing if missing[rank] != Silence.DOES_NOT_KNOW and rank in there]
        if job_ends:
            # The rank that leads knows how to end the job with its launcher. If none answers, all are ended.
            leads = min(there, key=lambda rank: (not ending.is_near(there[rank]), rank), default=None)
            for rank in self._processes:
                self._processes.tell(rank, agent.End(silent, rank == leads))
            ending.kill(silent)
            await self._dismissed.wait()  # who has asked for something gets no answer, and so does not go on
        else:
            calls = [(each.ranks.index(rank), status.description or "no call") for rank, status in statuses.items()]
            calls = calls if why == Why.DIFFERENT else []
            operation = next((status.operation for _, status in sorted(statuses.items()) if status.operation), "")
            del self._communicators[each.name]
            for rank in self._processes:
                self._processes.tell(rank, agent.Fail(each.name, operation, calls, text, silent))
            self._ending = False
