"""A process of a job tells the coordinator about its communicators, and answers. Each kind of message has a class."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

from mpicoll import errors
from mpicoll.launch import board, elastic
from mpicoll.launch.failure import is_first
from mpicoll.supervise import ending, report, tape
from mpicoll.supervise.messages import Answer, Ask, Files, Message, Process, Question, RankStatus, Rows, State
from mpicoll.supervise.rendezvous import Rendezvous
from mpicoll.supervise.watched import HEARTBEAT, LONG, LOOK, SECONDS_TO_HEAR, Watched, patience_at_end
from mpicoll.supervise.wire import Questions, connect, happens, heard, say

_HEARTBEAT_WHILE_WAITING = 3.0
_CHANGES, _SECONDS_TO_DUMP = 2.0, 5.0
"""Seconds between two messages that say no more than that calls were made, and what files may take."""
_SECONDS_FOR_LAUNCHER = 2.0
"""A launcher ends all ranks when one has ended. Only where it does not, a rank does so, and says why."""
_RECORDINGS = 4  # how many of them a process keeps, because other ranks may come to their ends later
_END = "coordinator"  # what one rank of a node does: it says that the coordinator does not answer, and ends the job
Write = Callable[[str, dict[str, int]], Files]
AllWatched = Callable[[], list[Watched]]


# -- what a process says ----------------------------------------------------------------------------------------------


class StatusUpdate(Message):
    """What has changed in a process. ``leaving`` says that it makes no more calls, and has gone on ``without`` these
    ranks of the world. It ``serves`` messages that may still come from it, or be taken by it: ``watched.under_way``."""

    states: list[State]
    trace: str  # the file for the trace of the whole job, empty if there is none
    leaving: bool
    serves: int
    without: list[int]
    code: int  # the exit code with which this rank ends the job; 0 if it does not
    failed: bool  # whether the process cannot watch any more


class Heartbeat(Message):
    """The sender is there. The coordinator answers with the same."""


class Compare(Question[str]):
    """Compare the calls of this communicator now. Any answer to a process is empty, or says what could not be done."""

    name: str


class Dump(Question[str]):
    """Let all processes write their files."""

    why: str


class WriteRecording(Question[str]):
    """Write this file with the calls of all processes that have recorded for it."""

    file: str


# -- what the coordinator says, and asks ------------------------------------------------------------------------------


class Forget(Message):
    """This communicator is over on all its ranks."""

    name: str


class Fail(Message):
    """Let the calls of this communicator end with an error: ``text``, or that of what ranks have called differently, in
    ``calls`` and for the first of them in ``operation``. The ``silent`` processes do not answer."""

    name: str
    operation: str
    calls: list[tuple[int, str]]
    text: str
    silent: list[Process]


class End(Message):
    """The job ends. The ``silent`` processes do not answer. The process that ``leads`` ends all."""

    silent: list[Process]
    leads: bool


class Leave(Message):
    """Nobody needs this process any more. Others may be ``lost``."""

    lost: bool


class HashOf(Question[tuple[int, str] | None]):
    """What is the hash of so many first calls of this communicator, or of all that can be compared if ``calls`` is
    None? The answer begins with their number. It is None if there are none, or if they are not known here any more."""

    name: str
    calls: int | None


class StatusOf(Question[RankStatus | None]):
    """What was the call of this number, or the last one if that is None?"""

    name: str
    number: int | None


class WriteFiles(Question[Files]):
    """Write the files. ``since`` has the first call of each communicator that is of interest."""

    why: str
    since: dict[str, int]


class Clock(Question[float]):
    """What time is it by ``time.monotonic``?"""


class RowsFrom(Question[Rows | None]):
    """What has been called, from this row on? The answer is None if this process has not recorded for this file."""

    file: str
    first: int


# -- the process ------------------------------------------------------------------------------------------------------


class Agent:
    """This process, rank ``rank`` of the job's world. ``write`` writes its last calls to files and says where."""

    def __init__(self, rank: int, rendezvous: Rendezvous, write: Write) -> None:
        self.rank, self._rendezvous, self._write = rank, rendezvous, write
        self._recordings: dict[str, Rows] = {}  # by their files
        self.trace = ""  # the file of the whole job's trace, if there is one
        self.watched: dict[str, Watched] = {}
        self.reached: Future[str] = Future()  # empty when the coordinator has answered, or why it cannot be reached
        self.writer: asyncio.StreamWriter | None = None  # the connection to the coordinator, if there is one
        self._coordinator: Process | None = None
        self._silent = self._since_told = self._since_heartbeat = self._since_lost = 0.0
        """Seconds since the coordinator was heard, told of all changes, asked for an answer, and lost."""
        self._leaving = self._lost = False
        self._serves = 0
        self._questions = Questions()
        self.may_leave = asyncio.Event()  # set when nobody needs this process any more

    async def serve(self) -> None:
        """Do what the coordinator asks, until it lets this process go."""
        while not self.may_leave.is_set() and await self._serve_connection():
            if self._coordinator is not None and ending.exit_reason(self._coordinator):
                break  # it cannot be reached again, as it can where a network has lost the connection
        self._lost = True
        self._say_loss()
        if self._leaving or self._coordinator is None:
            self.may_leave.set()  # there is nobody to ask

    def _say_loss(self) -> None:
        """Say what this rank does where the first one, which has the coordinator, has ended too early. The launcher is
        about to end this rank, too. Another one may have said it, or may have ended the first one."""
        first, coordinator = self._rendezvous.rank, self._coordinator
        if first is None or coordinator is None or self.may_leave.is_set() or ending.is_known:
            return
        exit_reason = ending.exit_reason(coordinator)
        those = [(each, each.status(None)) for each in self._all() if {first, self.rank} <= {*each.ranks}]
        if exit_reason and those and is_first(_END):
            each, status = max(those, key=lambda said: said[1].tells)
            call = board.last_call(first)
            missing: dict[int, report.Missing] = dict.fromkeys(each.ranks, report.Silence.HAD_NO_TIME)
            missing[first] = f"{exit_reason}; its last collective: {call}" if call else exit_reason
            del missing[self.rank]
            report.show(report.text(report.Why.IS_LOST, each.ranks, {self.rank: status}, missing))

    async def _serve_connection(self) -> bool:
        """Serve until the connection is lost. Returns whether a new one may be better."""
        where = self._rendezvous
        try:
            reader, writer, self._coordinator = await connect(where.addresses, where.port, where.token, self.rank)
        except OSError as e:
            self._reach(f"port {where.port} ({e})")
            return False
        for each in self._all():
            each.reported = None
        self.writer, self._silent = writer, 0.0
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
        while not await happens(self.may_leave, LOOK):
            for each in self._all():
                each.look()
                if each.cut is not None and each.cut.look():
                    self.watched.pop(each.name, None)  # ranks of it are lost, and it is cut
            self._silent += LOOK
            self._since_told += LOOK
            self._since_heartbeat += LOOK
            self._since_lost += LOOK * self._lost
            self.tell(everything=self._since_told >= _CHANGES)
            self._check_coordinator()

    def _all(self) -> list[Watched]:
        return [*self.watched.values()]  # the program adds to it meanwhile

    def tell(self, everything: bool = False) -> None:
        """Tell the coordinator what has changed: how long calls wait, and if it is to be ``everything`` all else."""
        if self.writer is None:
            return
        if everything:
            self._since_told = 0.0
        states: list[State] = []
        waits = self._leaving
        for each in self._all():
            state, told = each.state(), each.reported
            waits = waits or state.wait >= LONG
            if state != told and (everything or told is None or state.wait != told.wait):
                first = told is None and each.ranks[0] == self.rank
                states.append(state.changed(ranks=each.ranks) if first else state)
                each.reported = state
        if states or (self._leaving and everything):
            self._update(states)
        if self._since_heartbeat >= (_HEARTBEAT_WHILE_WAITING if waits else HEARTBEAT):
            self._since_heartbeat = 0.0
            say(self.writer, Heartbeat())

    def _update(self, states: list[State], code: int = 0, failed: bool = False) -> None:
        if self.writer is not None:
            without = sorted(elastic.without)
            say(self.writer, StatusUpdate(states, self.trace, self._leaving, self._serves, without, code, failed))

    def _check_coordinator(self) -> None:
        """End the job if the coordinator should end it and does not: it is stopped, or has ended."""
        timeout = max((each.timeout for each in self._all()), default=0.0)
        if self._leaving and not self._lost and self._silent >= patience_at_end(timeout):
            self._end("is at its end", "does not answer")
        for each in self._all():
            is_silent = self._silent >= SECONDS_TO_HEAR and each.seconds >= each.timeout + SECONDS_TO_HEAR
            has_ended = self._since_lost >= _SECONDS_FOR_LAUNCHER and each.seconds >= SECONDS_TO_HEAR
            if is_silent or has_ended:
                status = each.status(None)
                does = status.description if status.waits else status.message
                waits = f"has waited for {each.seconds:g} s in {does}, at {status.where}"
                self._end(waits, "has ended" if self._lost else "does not answer")

    def _end(self, does: str, why: str) -> None:
        if is_first(_END):
            who = "mpicoll run" if self._rendezvous.rank is None else "The first rank"
            report.show(f"mpicoll: rank {self.rank} {does}. {who}, which compares ranks, {why}. The job ends")
        is_of_rank = self._rendezvous.rank is not None and not self._lost
        ending.end([self._coordinator] if self._coordinator is not None and is_of_rank else [])

    # -- what the coordinator and the program ask ----------------------------------------------------------------------

    def _obey(self, message: object) -> None:
        match message:
            case Ask(number, question):
                assert self.writer is not None
                say(self.writer, Answer(number, self._answer(question)))
            case Answer():
                self._questions.take(message)
            case Forget(name):
                self.watched.pop(name, None)
            case Fail(name, operation, calls, text, silent):
                ending.kill(silent)
                if (failed := self.watched.pop(name, None)) is not None and failed.cut is not None:
                    different = errors.MismatchError(operation, dict(calls)) if calls else None
                    failed.cut.fail(different or errors.TimeoutError(text))
            case End(silent, leads):
                (ending.end if leads else ending.prepare_to_end)(silent)
            case Leave(lost):
                elastic.others_are_lost |= lost
                self.may_leave.set()

    def _answer(self, question: Question[Any]) -> Any:
        each = self.watched.get(getattr(question, "name", ""))
        match question:
            case WriteFiles(why, since):
                return self._write(why, since)
            case Clock():
                return monotonic()
            case RowsFrom(file, first):
                if file == self.trace and first == 0 and tape.active is not None:
                    self._recordings[file] = tape.active.copied(tape.active.begin)
                recording = self._recordings.get(file)
                return recording and tape.piece(recording, first)
            case HashOf(_, calls):
                if each is not None and calls is None:
                    calls = each.state().calls
                found = each and calls and each.recorder.hash(calls)
                return (calls, found) if found else None
            case StatusOf(_, number):
                return each and each.status(number, self._leaving)

    def leave(self, serves: int = 0) -> None:
        """Tell the coordinator that this process makes no more calls, and which messages it still ``serves``."""
        self._leaving, self._serves = True, serves
        self._silent = 0.0  # so far, this process has seldom asked the coordinator whether it is there
        if self._lost:
            self.may_leave.set()
        self.tell(everything=True)

    def give_up(self) -> None:
        """Tell the coordinator, and who waits in this process, that this process cannot watch any more."""
        self._update([], failed=True)
        self._reach("its port, because this rank's watcher has failed")

    async def fail(self, code: int) -> None:
        self._update([], code)

    async def dump(self, why: str) -> None:
        """Let all processes write their files. If the coordinator cannot be asked, this one writes its own."""
        if await self._ask(Dump(why), _SECONDS_TO_DUMP) is None:
            report.show(report.files({self.rank: self._write(why, {})}))

    async def write_recording(self, file: str, recording: Rows) -> str:
        """Let the coordinator write what this process and others have recorded. Returns why it could not, or ``""``."""
        self._recordings[file] = recording
        for old in [name for name in self._recordings if name != self.trace][:-_RECORDINGS]:
            del self._recordings[old]
        failure = await self._ask(WriteRecording(file))
        return "the coordinator, which writes it, has ended" if failure is None else failure

    async def compare(self, watched: Watched) -> None:
        """Let the coordinator compare the calls of a communicator now. If they differ, it ends the job."""
        self.tell(everything=True)
        await self._ask(Compare(watched.name))

    async def _ask(self, question: Question[str], seconds: float | None = None) -> str | None:
        """The coordinator's answer. None if it has not answered within so many seconds, or is not there."""
        if self.writer is None:
            return None
        answer = self._questions.put(self.writer, question)
        await asyncio.wait([answer], timeout=seconds)
        return answer.result() if answer.done() else None
