"""The thread of a process that watches over its calls: begun with the first communicator, ended with the program."""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from mpicoll.fabrics.fabric import Fabric
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
from mpicoll.launch.failure import before_end

__all__ = ["compare", "watch"]

_SECONDS_TO_COMPARE = 5.0
_SECONDS_TO_DUMP = 10.0


class _Watcher:
    """A thread with a member of a job and, where this process is the job's first, with its judge."""

    def __init__(
        self, rank: int, meeting: Meeting, folder: str, sock: socket.socket | None, trace: Trace | None
    ) -> None:
        self.meeting, self._sock, self._trace = meeting, sock, trace
        self.events = Events()
        dump = Dump(rank, folder, blake2b(meeting.token.encode(), digest_size=4).hexdigest(), _all_watched)
        self.member = Member(rank, meeting, dump.write, self.events.told)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="mpicoll watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        when_asked(self._loop, lambda: self.member.dump("a signal has asked for it"))
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        if self._sock is None:
            await self.member.serve()
            return
        judge = Judge(self.meeting.token, self._trace)
        server = await asyncio.start_server(judge.serve, sock=self._sock, limit=LIMIT)
        await asyncio.gather(self.member.serve(), judge.look_on())
        server.close()

    def do(self, task: Coroutine[Any, Any, None], seconds: float | None = None) -> None:
        """Let the thread do it, and wait for that, but no longer than these seconds."""
        if self._thread.is_alive():
            with suppress(TookTooLong):
                asyncio.run_coroutine_threadsafe(task, self._loop).result(seconds)
        else:
            task.close()

    def leave(self) -> None:
        self.do(self.member.leave())
        self._thread.join()


_watchers: dict[Meeting, _Watcher] = {}
"""One for each job that this process belongs to: usually one."""
_made: Counter[str] = Counter()
"""How many communicators there were of the same ranks."""


def watch(
    fabric: Fabric, recorder: Recorder, waits: list[tuple[str, str]], timeout: float, agrees: bool
) -> Watched | None:
    """Watch over the calls of a communicator. Collective. Returns None where its ranks have no common world."""
    ranks = fabric.in_world()
    if not ranks:
        return None
    sock = meeting = trace = None
    if fabric.rank == 0:
        meeting = next(iter(_watchers), None)
        if meeting is None:
            trace = Trace(checked_trace(fabric.rules.trace, ranks[0])) if fabric.rules.trace else None
            sock, meeting = listen(fabric.one_node)
    meeting = fabric.bcast(meeting, 0)
    watcher = _watchers.get(meeting)
    if watcher is None:
        watcher = _watchers[meeting] = _Watcher(ranks[fabric.rank], meeting, fabric.rules.dump, sock, trace)
    of = blake2b(",".join(map(str, ranks)).encode(), digest_size=6).hexdigest()
    _made[of] += 1
    watched = Watched(f"{of}.{_made[of]}", ranks, recorder, waits, timeout, agrees)
    watcher.member.watched[watched.name] = watched
    if isinstance(recorder, TracedRecorder):
        recorder.keep_in(watcher.events, watched.name)
    return watched


def _all_watched() -> list[Watched]:
    return [watched for watcher in [*_watchers.values()] for watched in [*watcher.member.watched.values()]]


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


# Python calls what was registered last first. This comes before the libraries that use communicators register theirs,
# so that they can still make calls at their end.
atexit.register(_leave)


def _dump(why: str) -> None:
    """Let all processes write their files, because this one fails. There are none if it has made no call."""
    if any(watched.recorder.begun for watched in _all_watched()):
        for watcher in _watchers.values():
            watcher.do(watcher.member.dump(why), _SECONDS_TO_DUMP)


before_end.append(_dump)


def _in_child() -> None:
    _watchers.clear()  # the thread is the parent's alone


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
