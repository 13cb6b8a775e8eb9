"""One process of a job: it looks at its communicators, tells the judge what has changed, and answers its questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any

from mpicoll.guard.elastic import failure
from mpicoll.guard.watch import ending, report
from mpicoll.guard.watch.channel import connect, happens, heard, say
from mpicoll.guard.watch.meeting import Meeting
from mpicoll.guard.watch.protocol import (
    AccountOf,
    Answer,
    Ask,
    Beat,
    CallsOf,
    Clock,
    Compare,
    Dump,
    End,
    EventList,
    EventsFrom,
    Fail,
    Failed,
    Files,
    Forget,
    HashOf,
    Leave,
    Lost,
    Process,
    Question,
    State,
    Told,
    WriteFiles,
)
from mpicoll.guard.watch.watched import (
    BEAT,
    BEAT_WHILE_WAITING,
    LONG,
    LOOK,
    SECONDS_TO_HEAR,
    TIME_IS_UP,
    Watched,
    patience_at_end,
)
from mpicoll.launch.alone import is_elastic
from mpicoll.launch.failure import is_first, was_done

_CHANGES = 2.0
"""Seconds between two messages that say no more than that calls were made."""
_SECONDS_TO_DUMP = 5.0
_SAY = 8
"""How many ranks say what they do if the judge is lost. Each speaks for itself."""
_SECONDS_FOR_LAUNCHER = 2.0
"""A launcher ends all ranks when one has ended. Only where it does not, a rank does so, and says why."""

_END = "judge"
"""What one rank of a node does: it says that the judge does not answer, and ends it."""

Write = Callable[[str, dict[str, int]], Files]


class Member:
    """This process, rank ``rank`` of the job's world. ``write`` writes its last calls to files and says where, and
    ``events`` tells all of them for a trace."""

    def __init__(self, rank: int, meeting: Meeting, write: Write, events: Callable[[int], EventList]) -> None:
        self.rank, self._meeting, self._write, self._events = rank, meeting, write, events
        self.watched: dict[str, Watched] = {}
        self.reached: Future[str] = Future()
        """Empty when the judge has answered, or why it cannot be reached."""
        self.writer: asyncio.StreamWriter | None = None
        """The connection to the judge, if there is one."""
        self._judge: Process | None = None
        """The judge's process, after it has said which."""
        self._silent = self._since_told = self._since_beat = 0.0
        """Seconds since the judge was heard, since it was told of all changes, and since it was asked for an answer."""
        self._since_lost = 0.0
        """Seconds since the judge was lost."""
        self._leaving = self._serves = self._lost = False
        self._wishes: dict[Compare | Dump, asyncio.Event] = {}
        """What the judge was asked to do. An event is set when it has done so."""
        self.may_leave = asyncio.Event()
        """Set when nobody needs this process any more."""

    async def serve(self) -> None:
        """Do what the judge asks, until it lets this process go."""
        while not self.may_leave.is_set() and await self._serve_connection():
            pass  # a network may lose a connection of two sound processes
        self._lost = True
        self._say_loss()
        if self._leaving or self._judge is None:
            self.may_leave.set()  # there is nobody to ask

    async def _serve_connection(self) -> bool:
        """Serve until the connection is lost. Returns whether a new one may be better."""
        try:
            reader, writer, judge = await connect(self._meeting, self.rank)
        except OSError as e:
            self._reach(f"port {self._meeting.port} ({e})")
            return False
        for each in self._all():
            each.told = None
        self.writer, self._judge, self._silent = writer, judge, 0.0
        self._reach("")
        while not self.may_leave.is_set() and (message := await heard(reader)) is not None:
            self._silent = 0.0
            self._obey(message)
        self.writer = None
        writer.close()
        return True

    def _reach(self, problem: str) -> None:
        if not self.reached.done():
            self.reached.set_result(problem)

    # -- looking and telling ------------------------------------------------------------------------------------------

    async def look_on(self) -> None:
        """Look at the communicators again and again."""
        while not await happens(self.may_leave, LOOK):
            for each in self._all():
                each.look()
                if each.cut is not None and (lost := each.cut.look()):
                    self._lose(each, lost)
            self._silent += LOOK
            self._since_told += LOOK
            self._since_beat += LOOK
            self._since_lost += LOOK if self._lost else 0.0
            self.tell(everything=self._since_told >= _CHANGES)
            self._check_judge()

    def _all(self) -> list[Watched]:
        return [*self.watched.values()]  # the program adds to it meanwhile

    def tell(self, everything: bool = False) -> None:
        """Tell the judge what has changed: how long calls wait at once, all else if it is to be ``everything``."""
        if self.writer is None:
            return
        if everything:
            self._since_told = 0.0
        states: list[State] = []
        waits = self._leaving
        for each in self._all():
            state, told = each.state(), each.told
            waits = waits or state[2] >= LONG
            if state != told and (everything or told is None or state[2] != told[2]):
                first = told is None and each.ranks[0] == self.rank
                states.append(State(each.name, *state, each.ranks if first else None))
                each.told = state
        if states or (self._leaving and everything):
            say(self.writer, Told(states, self._leaving, self._serves))
        if self._since_beat >= (BEAT_WHILE_WAITING if waits else BEAT):
            self._since_beat = 0.0
            say(self.writer, Beat())

    def _check_judge(self) -> None:
        """End the job if the judge should end it and does not: it is stopped, or has ended."""
        timeout = max((each.timeout for each in self._all()), default=0.0)
        if self._leaving and not self._lost and self._silent >= patience_at_end(timeout):
            self._end("is at its end", "does not answer")
        for each in self._all():
            late = each.state()[2] == TIME_IS_UP and each.seconds >= each.timeout + SECONDS_TO_HEAR
            # Where a communicator can be cut, MPI tells that the judge has ended.
            judge_has_ended = self._since_lost >= _SECONDS_FOR_LAUNCHER and each.cut is None
            if (late and self._silent >= SECONDS_TO_HEAR) or (judge_has_ended and each.seconds >= SECONDS_TO_HEAR):
                account = each.account(None)
                does = account.description if account.waits else account.message
                waits = f"has waited for {each.seconds:g} s in {does}, at {account.where}"
                self._end(waits, "has ended" if self._lost else "does not answer")

    def _lose(self, watched: Watched, ranks: Sequence[int]) -> None:
        """These ranks of the communicator are lost: it is cut, and need not be watched over any more."""
        self.watched.pop(watched.name, None)
        if self.writer is not None:
            say(self.writer, Lost([watched.ranks[rank] for rank in ranks]))

    def _say_loss(self) -> None:
        """Say what this rank does when the judge has ended too early. The launcher is about to end this rank, too."""
        known = self._judge is None or self._leaving or ending.is_known() or is_elastic() or was_done(_END)
        fate = "" if known or self._judge is None else ending.fate(self._judge)
        if fate and not self.may_leave.is_set():
            judge = self._meeting.rank
            those = [each for each in self._all() if judge in each.ranks and self.rank in each.ranks[:_SAY]]
            accounts = [(each, each.account(None)) for each in those]
            if accounts:  # mpicoll run tells of ranks that were ended before they could say so
                each, account = max(accounts, key=lambda said: said[1].tells)
                next_one = each.ranks[:2] in ([judge, self.rank], [self.rank, judge])
                lost: dict[int, report.Missing] = {judge: report.with_last_call(fate, judge)} if next_one else {}
                report.show(report.loss(each.ranks, {self.rank: account}, lost))

    def _end(self, does: str, why: str) -> None:
        if is_first(_END):
            first = f"The first rank, which compares ranks, {why}"
            report.show(f"mpicoll: rank {self.rank} {does}. {first}. The job ends")
        ending.end([self._judge] if self._judge is not None and not self._lost else [])

    # -- what the judge and the program ask ---------------------------------------------------------------------------

    def _obey(self, message: object) -> None:
        match message:
            case Ask(number, question):
                assert self.writer is not None
                say(self.writer, Answer(number, self._answer(question)))
            case Compare() | Dump():
                if (done := self._wishes.pop(message, None)) is not None:
                    done.set()
            case Forget(name):
                self.watched.pop(name, None)
            case Fail():
                ending.kill(message.silent)
                if (failed := self.watched.pop(message.name, None)) is not None and failed.cut is not None:
                    failed.cut.fail(failure(message))
            case End(silent):
                ending.prepare_to_end(silent)
            case Leave():
                self.may_leave.set()

    def _answer(self, question: Question[Any]) -> Any:
        match question:
            case WriteFiles(why, since):
                return self._write(why, since)
            case Clock():
                return monotonic()
            case EventsFrom(first):
                return self._events(first)
            case CallsOf(name):
                each = self.watched.get(name)
                return each and each.state()[0]
            case HashOf(name, calls):
                each = self.watched.get(name)
                return each and each.recorder.hash(calls)
            case AccountOf(name, number):
                each = self.watched.get(name)
                return each and each.account(number, self._leaving)

    def leave(self, serves: bool = False) -> None:
        """Tell the judge that this process makes no more calls, and whether messages may still come from it or be
        taken by it. ``may_leave`` is set when it may go."""
        self._leaving, self._serves = True, serves
        self._silent = 0.0  # so far, this process has seldom asked the judge whether it is there
        if self._lost:
            self.may_leave.set()
        self.tell(everything=True)

    def give_up(self) -> None:
        """Tell the judge, and who waits in this process, that this process cannot watch any more."""
        if self.writer is not None:
            say(self.writer, Failed())
        self._reach("its port, because this rank's watcher has failed")

    async def dump(self, why: str) -> None:
        """Let all processes write their files. If the judge cannot be asked, this one writes its own."""
        if self.writer is not None and await happens(self._wish(self.writer, Dump(why)), _SECONDS_TO_DUMP):
            return
        report.show(report.files({self.rank: self._write(why, {})}))

    async def compare(self, watched: Watched) -> None:
        """Let the judge compare the calls of a communicator now. If they differ, it ends the job."""
        if self.writer is not None:
            self.tell(everything=True)
            await self._wish(self.writer, Compare(watched.name)).wait()

    def _wish(self, writer: asyncio.StreamWriter, wish: Compare | Dump) -> asyncio.Event:
        """Ask the judge for this. The event is set when it has done so."""
        done = self._wishes.setdefault(wish, asyncio.Event())
        say(writer, wish)
        return done
