"""The thread of a process that watches over its calls, with a loop of asyncio."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import os
import socket
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from mpicoll.fabrics.thread_job import Onlooker
from mpicoll.guard.files.demand import when_asked
from mpicoll.guard.files.dump import Dump
from mpicoll.guard.files.traced import Events
from mpicoll.guard.watch import ending, report
from mpicoll.guard.watch.channel import LIMIT
from mpicoll.guard.watch.judge import Judge
from mpicoll.guard.watch.meeting import Meeting
from mpicoll.guard.watch.member import Member
from mpicoll.guard.watch.watched import Watched


class Thread:
    """A thread with a member of a job and, where this process is the job's first, with its judge.

    ``timeout``, ``folder`` and ``trace`` are those of the rules. ``all_watched`` tells the process's communicators."""

    def __init__(
        self,
        rank: int,
        meeting: Meeting,
        sock: socket.socket | None,
        timeout: float,
        folder: str,
        trace: Path | None,
        all_watched: Callable[[], list[Watched]],
    ) -> None:
        self.events = Events()
        self.has_folder = bool(folder)
        """Whether the user has named one for the files of last calls."""
        dump = Dump(rank, folder, blake2b(meeting.token.encode(), digest_size=4).hexdigest(), all_watched)
        self.member = Member(rank, meeting, dump.write, self.events.told)
        self._token, self._sock, self._trace = meeting.token, sock, trace
        self._longest = lambda: max((each.timeout for each in all_watched()), default=timeout)
        self._judge: Judge | None = None
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        when_asked(self._loop, lambda: self.member.dump("a signal has asked for it"))
        self._thread = Onlooker(target=self._run, name="mpicoll watcher", daemon=True)
        self._thread.start()
        if not faulthandler.is_enabled():
            # A crash within MPI then says where the program was. MPI's own report follows.
            faulthandler.enable(2, all_threads=False)

    def _run(self) -> None:
        with self._runner:
            try:
                self._runner.run(self._serve())
            except Exception:
                # A mistake of the watcher's own must not end a job that may be sound.
                said = (
                    f"mpicoll: the watcher of rank {self.member.rank} has failed. From now on, calls are not compared"
                )
                report.show(f"{said}, and may wait for ever\n{traceback.format_exc().rstrip()}")
                self.member.give_up()
                if self._judge is not None:
                    self._judge.dismiss()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._sock is not None:
                judge = self._judge = Judge(self._token, self._longest, tasks, self._trace)
                server = await asyncio.start_server(
                    lambda reader, writer: tasks.create_task(judge.serve(reader, writer)), sock=self._sock, limit=LIMIT
                )
                self._loop.set_exception_handler(partial(self._has_failed, server))
                tasks.create_task(judge.look_on()).add_done_callback(lambda _: server.close())
            tasks.create_task(self.member.serve())
            tasks.create_task(self.member.look_on())

    def _has_failed(self, server: asyncio.Server, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio would only print, and try again for ever where this process may open no more files."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
            return
        server.close()  # to end needs a file
        said = f"mpicoll: rank {self.member.rank} cannot take the connection of another rank: {error.strerror}"
        report.show(f"{said} (ulimit -n). It needs one for each rank. The job ends")
        ending.end([])

    def soon(self, do: Callable[[], object]) -> None:
        """Let the thread do it, and do not wait for that."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(do)

    def do(self, task: Coroutine[Any, Any, None], seconds: float) -> None:
        """Let the thread do it, and wait for that, but no longer than these seconds."""
        try:
            asyncio.run_coroutine_threadsafe(task, self._loop).result(seconds)
        except (RuntimeError, CancelledError):  # nobody watches any more
            task.close()
        except TimeoutError:
            pass  # a rank does not answer, and the error that the caller has says enough

    def let_go(self) -> None:
        """In a forked child: close its copies of the connections. Else the others would not see that the parent ends.

        The numbers of the files stay taken, because objects that are the parent's still use them."""
        writers = [self.member.writer, *(self._judge.writers if self._judge is not None else [])]
        sockets = [self._sock, *(writer.get_extra_info("socket") for writer in writers if writer is not None)]
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in [each.fileno() for each in sockets if each is not None]:
            if number >= 0:
                os.dup2(nothing, number, inheritable=False)
        os.close(nothing)

    def has_left(self, seconds: float) -> bool:
        """Wait for the end of the thread, but no longer than so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()
