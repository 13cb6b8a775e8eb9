"""The coordinator in ``mpicoll run``, which survives every rank. It loads little before the ranks start."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mpicoll.launch.elastic import Outcome
from mpicoll.launch.launch_env import COORDINATOR, ELASTIC
from mpicoll.supervise.rendezvous import listen

if TYPE_CHECKING:
    import asyncio

    from mpicoll.jobs.launcher import Job
    from mpicoll.jobs.run import ExitMonitor
    from mpicoll.launch.board import CrashBoard
    from mpicoll.supervise.coordinator import Coordinator

_SECONDS_TO_END = 10.0  # what ranks' last words may take, when the launcher has ended


class Host:
    """Listens as soon as it is made, so that ranks can be told where. ``serve`` is to run in a thread that begins after
    the launcher has started: what it loads must not delay that. Ranks on other nodes may not reach this process, as on
    a login node. Their job has its coordinator in its first rank, unless ranks may be lost."""

    def __init__(self, job: Job, board: CrashBoard) -> None:
        self.outcome = Outcome() if job.elastic else None
        self.variables = {ELASTIC: "1"} if job.elastic else {}
        self._sock: socket.socket | None = None
        if job.on_this_node or job.elastic:
            self._sock, rendezvous = listen(job.on_this_node, None, job.nprocs)
            self._token = rendezvous.token
            self.variables[COORDINATOR] = str(rendezvous)
        self.board = board
        self._coordinator: Coordinator | None = None
        self._task: asyncio.Task[None] | None = None
        self.monitor: ExitMonitor | None = None  # knows which process has ended first
        self._serves = threading.Event()

    def serve(self, monitor: ExitMonitor) -> None:
        self.monitor = monitor
        if self._sock is None:
            return
        import asyncio

        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            try:
                runner.run(self._serve(self._sock))
            except Exception:
                from mpicoll.supervise.report import failed

                failed("the coordinator")
                self._sock.close()  # who comes now is refused, and does not wait for an answer
                if self._coordinator is not None:
                    self._coordinator.dismiss()
            finally:
                self._serves.set()

    async def _serve(self, sock: socket.socket) -> None:
        import asyncio

        from mpicoll.supervise.coordinator import Coordinator

        async with asyncio.TaskGroup() as tasks:
            self._task = asyncio.current_task()
            while True:  # ranks that meet after all others have left get another one
                self._coordinator = Coordinator(self._token, tasks, self)
                self._serves.set()
                await self._coordinator.run(sock.dup())

    def stop(self, serving: threading.Thread) -> None:
        """The launcher has ended: return when all is said of how ranks have ended. ``serve`` runs in this thread."""
        if self._sock is None:
            return
        self._serves.wait()
        deadline = time.monotonic() + _SECONDS_TO_END
        while self._coordinator and self._coordinator.writers and serving.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._task is not None:
            with suppress(RuntimeError):  # it has failed
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        serving.join()
        self._sock.close()
