"""The thread of a process that watches over its calls: begun with the first communicator, ended with the program."""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
import traceback
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from mpicoll.fabrics.fabric import Fabric
from mpicoll.guard.elastic import Cut
from mpicoll.guard.files.demand import when_asked
from mpicoll.guard.files.dump import Dump
from mpicoll.guard.files.places import checked_trace
from mpicoll.guard.files.trace import Trace
from mpicoll.guard.files.traced import Events, TracedRecorder
from mpicoll.guard.recorder import Recorder
from mpicoll.guard.watch.channel import LIMIT, Meeting, listen
from mpicoll.guard.watch.judge import Judge
from mpicoll.guard.watch.member import Member
from mpicoll.guard.watch.watched import Watched
from mpicoll.launch.elastic import lost
from mpicoll.launch.failure import before_end
from mpicoll.launch.lifetime import progress
from mpicoll.units import named

__all__ = ["compare", "watch"]

_SECONDS_TO_COMPARE = _SECONDS_TO_DUMP = 10.0
_SECONDS_TO_PROGRESS = 0.02


class _Watcher:
    """A thread with a member of a job and, where this process is the job's first, with its judge."""

    def __init__(
        self, rank: int, meeting: Meeting, sock: socket.socket | None, timeout: float, folder: str, trace: Trace | None
    ) -> None:
        self.events = Events()
        dump = Dump(rank, folder, blake2b(meeting.token.encode(), digest_size=4).hexdigest(), _all_watched)
        self.member = Member(rank, meeting, dump.write, self.events.told)
        self._token, self._sock, self._timeout, self._trace = meeting.token, sock, timeout, trace
        self._judge: Judge | None = None
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        when_asked(self._loop, lambda: self.member.dump("a signal has asked for it"))
        self._thread = threading.Thread(target=self._run, name="mpicoll watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._runner:
            try:
                self._runner.run(self._serve())
            except Exception:
                # A mistake of the watcher's own must not end a job that may be sound.
                said = (
                    f"mpicoll: the watcher of rank {self.member.rank} has failed. From now on, calls are not compared"
                )
                os.write(2, f"{said}, and may wait for ever\n{traceback.format_exc()}".encode())
                self.member.give_up()
                if self._judge is not None:
                    self._judge.dismiss()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._sock is not None:
                judge = self._judge = Judge(self._token, self._timeout, tasks, self._trace)
                server = await asyncio.start_server(
                    lambda reader, writer: tasks.create_task(judge.serve(reader, writer)), sock=self._sock, limit=LIMIT
                )
                tasks.create_task(judge.look_on()).add_done_callback(lambda _: server.close())
            tasks.create_task(self.member.serve())
            tasks.create_task(self.member.look_on())

    def do(self, task: Coroutine[Any, Any, None], seconds: float) -> None:
        """Let the thread do it, and wait for that, but no longer than these seconds."""
        try:
            asyncio.run_coroutine_threadsafe(task, self._loop).result(seconds)
        except (RuntimeError, CancelledError):  # nobody watches any more
            task.close()
        except TimeoutError:
            pass  # a rank does not answer, and the error that the caller has says enough

    def end(self) -> None:
        """Let the thread end: its judge is lost."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self.member.may_leave.set)

    def leave(self) -> None:
        """Let the thread end as soon as nobody needs this process any more."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self.member.leave)

    def has_left(self, seconds: float) -> bool:
        """Wait for the end of the thread, but no longer than so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


_watchers: dict[Meeting, _Watcher] = {}
"""One for each job that this process belongs to: usually one."""
_made: Counter[str] = Counter()
"""How many communicators there were of the same ranks."""


def watch(
    fabric: Fabric, recorder: Recorder, waits: list[tuple[str, str]], timeout: float, agrees: bool, cut: Cut | None
) -> Watched | None:
    """Watch over the calls of a communicator. Collective. Returns None where its ranks have no common world."""
    ranks = fabric.in_world()
    left_over = _forget_lost()
    watcher = _common_watcher(fabric, ranks, timeout) if ranks else None
    if watcher is None:
        return None
    of = blake2b(",".join(map(str, ranks)).encode(), digest_size=6).hexdigest()
    _made[of] += 1
    watched = Watched(f"{of}.{_made[of]}", ranks, recorder, waits, timeout, agrees, cut)
    watcher.member.watched[watched.name] = watched
    if isinstance(recorder, TracedRecorder):
        recorder.keep_in(watcher.events, watched.name)
    for each in left_over:
        if {*each.ranks} <= {*ranks}:
            each.told = None
            watcher.member.watched[each.name] = each
    return watched


def _forget_lost() -> list[Watched]:
    """End the watchers whose judge is lost. Returns the communicators that they watched over and that still work."""
    left_over: list[Watched] = []
    for meeting, watcher in [*_watchers.items()]:
        if meeting.rank in lost():
            left_over += watcher.member.watched.values()
            watcher.end()
            del _watchers[meeting]
    return left_over


def _all_watched() -> list[Watched]:
    return [watched for watcher in [*_watchers.values()] for watched in [*watcher.member.watched.values()]]


def _common_watcher(fabric: Fabric, ranks: list[int], timeout: float) -> _Watcher | None:
    """The watcher of this process that has the same judge as those of the other ranks. None if a rank cannot reach
    the judge."""
    rules = fabric.rules
    sock = meeting = trace = None
    if fabric.rank == 0:
        meeting = next((meeting for meeting, watcher in _watchers.items() if not watcher.has_left(0)), None)
        if meeting is None:
            trace = Trace(checked_trace(rules.trace, ranks[0])) if rules.trace else None
            sock, meeting = listen(fabric.one_node, ranks[0])
    meeting = fabric.bcast(meeting, 0)
    watcher = _watchers.get(meeting) or _Watcher(ranks[fabric.rank], meeting, sock, timeout, rules.dump, trace)
    problems = fabric.allgather(watcher.member.reached.result())
    if not any(problems):
        _watchers[meeting] = watcher
        return watcher
    if meeting not in _watchers:
        watcher.leave()
    if fabric.rank == 0:
        apart = [rank for rank, problem in zip(ranks, problems, strict=True) if problem]
        said = f"mpicoll: {named(apart)} cannot reach the first rank's watcher"
        why = next(filter(None, problems))
        os.write(2, f"{said} at {why}. Calls are not compared, and may wait for ever\n".encode())
    return None


def compare(watched: Watched) -> None:
    """Compare the calls of this communicator with those of its other ranks now. Where they differ, the job ends, and
    this does not return."""
    for watcher in _watchers.values():
        if watched.name in watcher.member.watched:
            watcher.do(watcher.member.compare(watched), _SECONDS_TO_COMPARE)


def _leave() -> None:
    """At the end of the program: wait until the calls of all ranks are known to be the same."""
    for watcher in _watchers.values():
        watcher.leave()
        while not watcher.has_left(_SECONDS_TO_PROGRESS):
            progress()  # messages of this rank may still be under way


# Python calls what was registered last first. This comes before the libraries that use communicators register theirs,
# so that they can still make calls at their end.
atexit.register(_leave)


def _dump(why: str) -> None:
    """Let all processes write their files, because this one fails. There are none if it has made no call."""
    if any(watched.recorder.begun for watched in _all_watched()):
        for watcher in _watchers.values():
            watcher.do(watcher.member.dump(why), _SECONDS_TO_DUMP)


before_end.append(_dump)

_of_parent: list[_Watcher] = []
"""In a forked child, the parent's watchers. To collect them would close what the parent still uses."""


def _in_child() -> None:
    _of_parent.extend(_watchers.values())
    _watchers.clear()  # the thread is the parent's alone


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
