"""Where the coordinator of a job listens, and the coordinator in ``mpicoll run``, which survives every rank. ``mpicoll
run`` begins to listen before it starts the ranks, so this file loads little."""

from __future__ import annotations

import os
import resource
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from mpicoll.errors import LaunchError
from mpicoll.launch.elastic import Outcome
from mpicoll.launch.launch_env import COORDINATOR, ELASTIC

if TYPE_CHECKING:
    import asyncio

    from mpicoll.jobs.launcher import Job
    from mpicoll.jobs.run import ExitMonitor
    from mpicoll.launch.board import CrashBoard
    from mpicoll.supervise.coordinator import Coordinator

_OTHER_FILES, _SECONDS_TO_END = 8, 10.0
"""The files of the watcher's own, with those that are written at the end; what ranks' last words may take then."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the coordinator of a job listens, the job's token, and its rank in the world: None in ``mpicoll run``."""

    addresses: tuple[str, ...]
    port: int
    token: str
    rank: int | None = 0

    def __str__(self) -> str:
        return f"{','.join(self.addresses)}:{self.port}:{self.token}"

    @classmethod
    def given(cls, text: str) -> Rendezvous:
        """That of ``mpicoll run``, which has told it as this text."""
        addresses, port, token = text.split(":")
        return cls((*addresses.split(","),), int(port), token, None)

    @property
    def on_one_node(self) -> bool:
        """Whether only the processes of one node can reach it."""
        return self.addresses == ("127.0.0.1",)


def listen(one_node: bool, rank: int | None = 0, ranks: int = 1) -> tuple[socket.socket, Rendezvous]:
    """A socket at which this ``rank`` of the world listens, or ``mpicoll run`` if that is None, and how others find it.
    So many ``ranks`` connect: raises LaunchError if this process may not open so many files."""
    _make_room(rank, ranks)
    sock = socket.create_server(("127.0.0.1" if one_node else "", 0), backlog=1024)
    addresses = ("127.0.0.1",) if one_node else _addresses()
    return sock, Rendezvous(addresses, sock.getsockname()[1], secrets.token_hex(16), rank)


def _addresses() -> tuple[str, ...]:
    """The addresses of this node, those first that other nodes are likely to reach."""
    named: list[str] = []
    with suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        named += [str(each[4][0]) for each in found]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):  # or the names above must do
        sock.connect(("192.0.2.1", 9))  # sends nothing: it asks which address leads out of this node
        named.append(sock.getsockname()[0])
    ordered = sorted(named, key=lambda address: address.startswith("127."))
    return tuple(dict.fromkeys([*ordered, "127.0.0.1"]))


def _make_room(rank: int | None, ranks: int) -> None:
    """Let this process open as many files as a coordinator of so many ranks needs. Raises LaunchError if it may not."""
    unlimited = resource.RLIM_INFINITY
    soft, hard = (inf if limit == unlimited else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    each = 2 if rank is None else 1  # mpicoll run has a file for each rank's process, too
    needed = len(os.listdir("/dev/fd")) + each * ranks + _OTHER_FILES
    if needed <= soft:
        return
    if needed > hard:
        who = "mpicoll run" if rank is None else f"rank {rank}"
        told = f"{who} may open {hard} files, and needs {needed}: {each} for each of {ranks} ranks, and what it has"
        raise LaunchError(f"{told} open", f"Raise the limit (ulimit -Hn {needed}; in systemd, LimitNOFILE)")
    # This is not done without need: select.select knows no file beyond the first 1,024.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


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
