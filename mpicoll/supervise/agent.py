"""A process of a job looks at its communicators, tells the coordinator what has changed, and answers its questions."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from mpicoll import errors
from mpicoll.launch import board, elastic
from mpicoll.launch.failure import is_first
from mpicoll.supervise import ending, report, tape
from mpicoll.supervise import messages as msg
from mpicoll.supervise.dump import DumpWriter, when_asked
from mpicoll.supervise.host import Rendezvous
from mpicoll.supervise.sites import DaemonThread
from mpicoll.supervise.watched import HEARTBEAT, LONG, LOOK, SECONDS_TO_HEAR, Watched, patience_at_end
from mpicoll.supervise.wire import Questions, connect, happens, heard, say

if TYPE_CHECKING:
    from mpicoll.supervise.coordinator import Coordinator

_HEARTBEAT_WHILE_WAITING = 3.0
_CHANGES, _SECONDS_TO_DUMP = 2.0, 5.0
"""Seconds between two messages that say no more than that calls were made, and what files may take."""
_SECONDS_FOR_LAUNCHER = 2.0
"""A launcher ends all ranks when one has ended. Only where it does not, a rank does so, and says why."""
_RECORDINGS = 4  # how many of them a process keeps, because other ranks may come to their ends later
_END = "coordinator"  # what one rank of a node does: it says that the coordinator does not answer, and ends the job
T = TypeVar("T")
Write = Callable[[str, dict[str, int]], msg.Files]
AllWatched = Callable[[], list[Watched]]


class Agent:
    """This process, rank ``rank`` of the job's world. ``write`` writes its last calls to files and says where."""

    def __init__(self, rank: int, rendezvous: Rendezvous, write: Write) -> None:
        self.rank, self._rendezvous, self._write = rank, rendezvous, write
        self._recordings: dict[str, msg.Rows] = {}  # by their files
        self.trace = ""  # the file of the whole job's trace, if there is one
        self.watched: dict[str, Watched] = {}
        self.reached: Future[str] = Future()  # empty when the coordinator has answered, or why it cannot be reached
        self.writer: asyncio.StreamWriter | None = None  # the connection to the coordinator, if there is one
        self._coordinator: msg.Process | None = None
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
        states: list[msg.State] = []
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
            say(self.writer, msg.Heartbeat())

    def _update(self, states: list[msg.State], code: int = 0, failed: bool = False) -> None:
        if self.writer is not None:
            without = sorted(elastic.without)
            say(self.writer, msg.StatusUpdate(states, self.trace, self._leaving, self._serves, without, code, failed))

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
            case msg.Ask(number, question):
                assert self.writer is not None
                say(self.writer, msg.Answer(number, self._answer(question)))
            case msg.Answer():
                self._questions.take(message)
            case msg.Forget(name):
                self.watched.pop(name, None)
            case msg.Fail(name, operation, calls, text, silent):
                ending.kill(silent)
                if (failed := self.watched.pop(name, None)) is not None and failed.cut is not None:
                    different = errors.MismatchError(operation, dict(calls)) if calls else None
                    failed.cut.fail(different or errors.TimeoutError(text))
            case msg.End(silent, leads):
                (ending.end if leads else ending.prepare_to_end)(silent)
            case msg.Leave(lost):
                elastic.others_are_lost |= lost
                self.may_leave.set()

    def _answer(self, question: msg.Question[Any]) -> Any:
        each = self.watched.get(getattr(question, "name", ""))
        match question:
            case msg.WriteFiles(why, since):
                return self._write(why, since)
            case msg.Clock():
                return monotonic()
            case msg.RowsFrom(file, first):
                if file == self.trace and first == 0 and tape.active is not None:
                    self._recordings[file] = tape.active.copied(tape.active.begin)
                recording = self._recordings.get(file)
                return recording and tape.piece(recording, first)
            case msg.HashOf(_, calls):
                if each is not None and calls is None:
                    calls = each.state().calls
                found = each and calls and each.recorder.hash(calls)
                return (calls, found) if found else None
            case msg.StatusOf(_, number):
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
        if await self._ask(msg.Dump(why), _SECONDS_TO_DUMP) is None:
            report.show(report.files({self.rank: self._write(why, {})}))

    async def write_recording(self, file: str, recording: msg.Rows) -> str:
        """Let the coordinator write what this process and others have recorded. Returns why it could not, or ``""``."""
        self._recordings[file] = recording
        for old in [name for name in self._recordings if name != self.trace][:-_RECORDINGS]:
            del self._recordings[old]
        failure = await self._ask(msg.WriteRecording(file))
        return "the coordinator, which writes it, has ended" if failure is None else failure

    async def compare(self, watched: Watched) -> None:
        """Let the coordinator compare the calls of a communicator now. If they differ, it ends the job."""
        self.tell(everything=True)
        await self._ask(msg.Compare(watched.name))

    async def _ask(self, question: msg.Question[str], seconds: float | None = None) -> str | None:
        """The coordinator's answer. None if it has not answered within so many seconds, or is not there."""
        if self.writer is None:
            return None
        answer = self._questions.put(self.writer, question)
        await asyncio.wait([answer], timeout=seconds)
        return answer.result() if answer.done() else None


class AgentThread:
    """A thread with an agent of a job and, where this process listens at ``sock``, with the job's coordinator.
    ``folder`` is the text of MPICOLL_DUMP. ``watched`` tells the process's communicators."""

    def __init__(
        self, rank: int, rendezvous: Rendezvous, sock: socket.socket | None, folder: str, watched: AllWatched
    ) -> None:
        self.has_folder = bool(folder)
        dump = DumpWriter(rank, folder, blake2b(rendezvous.token.encode(), digest_size=4).hexdigest(), watched)
        self.agent = Agent(rank, rendezvous, dump.write)
        self._token, self._sock = rendezvous.token, sock
        self._coordinator: Coordinator | None = None
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = DaemonThread(self._run, "mpicoll watcher")
        self._thread.start()
        if not faulthandler.is_enabled():
            # A crash within MPI then says where the program was. MPI's own report follows.
            faulthandler.enable(2, all_threads=False)

    def _run(self) -> None:
        with self._runner:
            try:
                self._runner.run(self._serve())
            except Exception:
                report.failed(f"the watcher of rank {self.agent.rank}")
                self.agent.give_up()
                if self._coordinator is not None:
                    self._coordinator.dismiss()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            when_asked(self._loop, lambda: tasks.create_task(self.agent.dump("a signal has asked for it")))
            if self._sock is not None:
                from mpicoll.supervise.coordinator import Coordinator

                self._coordinator = Coordinator(self._token, tasks)
                tasks.create_task(self._coordinator.run(self._sock))
            tasks.create_task(self.agent.serve())
            tasks.create_task(self.agent.look_on())

    def soon(self, do: Callable[[], object]) -> None:
        """Let the thread do it, and do not wait for that."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(do)

    def do(self, task: Coroutine[Any, Any, T], seconds: float) -> T | None:
        """Let the thread do it, and wait for that so many seconds. Returns its result, None if it has none by then."""
        try:
            return asyncio.run_coroutine_threadsafe(task, self._loop).result(seconds)
        except (RuntimeError, CancelledError):  # nobody watches any more
            task.close()
        except TimeoutError:
            pass  # a rank does not answer, and the error that the caller has says enough
        return None

    def let_go(self) -> None:
        """In a forked child: close its copies of the connections. Else the others would not see that the parent ends.
        The numbers of the files stay taken, because objects that are the parent's still use them."""
        writers = [self.agent.writer, *(self._coordinator.writers if self._coordinator is not None else [])]
        sockets = [self._sock, *(writer.get_extra_info("socket") for writer in writers if writer is not None)]
        nothing = os.open(os.devnull, os.O_RDWR)
        for each in sockets:
            if each is not None and each.fileno() >= 0:
                os.dup2(nothing, each.fileno(), inheritable=False)
        os.close(nothing)

    def has_left(self, seconds: float) -> bool:
        """Wait for the end of the thread, but no longer than so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()
