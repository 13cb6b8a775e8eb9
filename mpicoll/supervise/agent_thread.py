"""The thread in which a process's agent works."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

from mpicoll.supervise import report
from mpicoll.supervise.agent import Agent, AllWatched
from mpicoll.supervise.dump import DumpWriter, when_asked
from mpicoll.supervise.rendezvous import Rendezvous
from mpicoll.supervise.sites import DaemonThread

if TYPE_CHECKING:
    from mpicoll.supervise.coordinator import Coordinator

T = TypeVar("T")


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
