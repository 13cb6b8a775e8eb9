"""The thread of a process that watches over its calls: begun with the first communicator, ended with the program."""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import TimeoutError as TookTooLong
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from mpicoll.fabrics.fabric import Fabric
from mpicoll.guard.elastic import Cut
from mpicoll.guard.recorder import Recorder
from mpicoll.guard.watch.channel import LIMIT, Meeting, listen
from mpicoll.guard.watch.judge import Judge
from mpicoll.guard.watch.member import Member
from mpicoll.guard.watch.watched import Watched
from mpicoll.launch.elastic import lost

__all__ = ["compare", "lose", "watch"]

_SECONDS_TO_COMPARE = 5.0


class _Watcher:
    """A thread with a member of a job and, where this process is the job's first, with its judge."""

    def __init__(self, rank: int, meeting: Meeting, sock: socket.socket | None) -> None:
        self.meeting, self._sock = meeting, sock
        self.member = Member(rank, meeting, lambda why: "")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="mpicoll watcher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        if self._sock is None:
            await self.member.serve()
            return
        judge = Judge(self.meeting.token)
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

    def lose(self, ranks: Sequence[int]) -> None:
        self._loop.call_soon_threadsafe(self.member.lose, ranks, True)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self.member.may_leave.set)

    def leave(self) -> None:
        self.do(self.member.leave())
        self._thread.join()


_watchers: dict[Meeting, _Watcher] = {}
"""One for each job that this process belongs to: usually one."""
_made: Counter[str] = Counter()
"""How many communicators there were of the same ranks."""


def watch(
    fabric: Fabric, recorder: Recorder, waits: list[tuple[str, str]], timeout: float, agrees: bool, cut: Cut | None
) -> Watched | None:
    """Watch over the calls of a communicator. Collective. Returns None where its ranks have no common world."""
    ranks = fabric.in_world()
    if not ranks:
        return None
    left_over = _forget_lost()
    sock = meeting = None
    if fabric.rank == 0:
        meeting = next(iter(_watchers), None)
        if meeting is None:
            sock, meeting = listen(fabric.one_node, ranks[0])
    meeting = fabric.bcast(meeting, 0)
    watcher = _watchers.get(meeting)
    if watcher is None:
        watcher = _watchers[meeting] = _Watcher(ranks[fabric.rank], meeting, sock)
    of = blake2b(",".join(map(str, ranks)).encode(), digest_size=6).hexdigest()
    _made[of] += 1
    watched = Watched(f"{of}.{_made[of]}", ranks, recorder, waits, timeout, agrees, cut)
    watcher.member.watched[watched.name] = watched
    for each in left_over:
        if {*each.ranks} <= {*ranks}:
            each.told = None
            watcher.member.watched[each.name] = each
    return watched


def _forget_lost() -> list[Watched]:
    """End the watchers whose judge is lost. Returns the communicators that they watched over and that still work."""
    left_over: list[Watched] = []
    for meeting, watcher in list(_watchers.items()):
        if meeting.rank in lost():
            left_over += watcher.member.watched.values()
            watcher.end()
            del _watchers[meeting]
    return left_over


def lose(ranks: Sequence[int]) -> None:
    """MPI has reported that these ranks of the world are lost: cut all communicators that they are in."""
    for watcher in list(_watchers.values()):
        watcher.lose(ranks)


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


def _in_child() -> None:
    _watchers.clear()  # the thread is the parent's alone


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
