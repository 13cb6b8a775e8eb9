"""``mpicoll run --elastic``: a job that goes on when ranks are lost, and what its exit code says of that.

Open MPI's launcher ends with 0 though ranks were killed. So ``mpicoll run`` stays beside it, and each rank keeps a
connection to it: through that, a rank says at its end which ranks it has gone on without.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mpicoll.errors import LaunchError
from mpicoll.launch import lifecycle
from mpicoll.launch.launch_env import ELASTIC, is_elastic, launched_rank
from mpicoll.units import named

if TYPE_CHECKING:
    import subprocess

_SECONDS_TO_CONNECT = 30.0
_HELLO, _LAST = 1 << 8, 1 << 24
"""Bytes of the longest line that a rank says, before it is known that it is one and after."""
_SECONDS_TO_PROGRESS = 0.02
_SECONDS_TO_BEGIN = 5.0
"""In which a rank says that MPI has begun, if it had begun before another one was lost."""
_LOOKS = 0.1
_SECONDS_TO_END = 10.0
"""What the launcher may take to end after the last rank has, or after one has failed; and what the last words of ranks
may take to come after its end."""


# -- in mpicoll run ---------------------------------------------------------------------------------------------------


@dataclass
class _Connection:
    """One of a rank, or of a stranger until it has said the token."""

    socket: socket.socket
    rank: int | None = None
    unread: bytes = b""
    """The beginning of a line."""


class Attendance:
    """Which ranks of a job have begun, and which have come to their end in order."""

    def __init__(self, nprocs: int, this_node: bool) -> None:
        host = "127.0.0.1" if this_node else ""
        self._nprocs, self._token = nprocs, secrets.token_hex(16)
        self._listener = socket.create_server((host, 0), backlog=1024)
        self._address = f"{host or socket.gethostname()}:{self._listener.getsockname()[1]}:{self._token}"
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._waiting: list[socket.socket] = []
        """The connections of ranks that wait for the others to end."""
        self._ended: dict[int, set[int]] = {}
        """By rank, the ranks that it has gone on without."""
        self._gone = 0
        """The number of ranks that do not run any more."""
        self._code = 0
        """The exit code with which the first rank that failed ends the job."""
        self._first_lost: int | None = None
        self._mpi_begun = False
        """Whether MPI has begun on a rank."""
        self._ends: list[Callable[[], object]] = []
        """What ends the launcher if it goes on after ``_deadline``."""
        self._deadline = 0.0

    def variables(self) -> dict[str, str]:
        """What the ranks must find in their environment."""
        return {ELASTIC: self._address}

    def attend(self, launcher: subprocess.Popen[bytes]) -> int:
        """Hear what ranks say until the launcher has ended, and end it if it does not end by itself. Returns its exit
        code."""
        while (code := launcher.poll()) is None:
            self._hear(_LOOKS)
            self._end_in_time(launcher)
        deadline = time.monotonic() + _SECONDS_TO_END
        self._hear(0)
        while len(self._selector.get_map()) > 1 and time.monotonic() < deadline:
            self._hear(_LOOKS)  # what ranks said just before may still be on its way
        self._selector.close()
        for each in (self._listener, *self._waiting):
            each.close()
        return code

    def _hear(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is not None:
                self._read(key.data)
                continue
            with suppress(OSError):  # there are no more
                while True:
                    connection, _ = self._listener.accept()
                    connection.setblocking(False)
                    self._selector.register(connection, selectors.EVENT_READ, _Connection(connection))

    def _read(self, connection: _Connection) -> None:
        """Read what has come. A stranger may say anything."""
        try:
            read = connection.socket.recv(1 << 16)
        except OSError:
            read = b""
        *lines, connection.unread = (connection.unread + read).split(b"\n")
        for message in map(_message, lines):
            if connection.rank is None:
                if message.get("token") != self._token or not isinstance(message.get("rank"), int):
                    read = b""
                    break
                connection.rank = message["rank"]
            elif "begun" in message:
                self._mpi_begun = True
            else:
                self._waiting.append(connection.socket)
                self._goes(connection, message)
                return
        if not read or len(connection.unread) > (_HELLO if connection.rank is None else _LAST):
            self._goes(connection, {})
            connection.socket.close()

    def _goes(self, connection: _Connection, last: dict[str, Any]) -> None:
        """The rank has come to its end, or it ends the job with an exit code, or, if it says neither, it is lost."""
        self._selector.unregister(connection.socket)
        if connection.rank is None:
            return
        if "without" in last:
            self._ended[connection.rank] = {*last["without"]}
        elif not last.get("fails") and self._first_lost is None:
            self._first_lost = connection.rank
            self._deadline = time.monotonic() + _SECONDS_TO_BEGIN
        self._code = self._code or last.get("fails", 0)
        self._gone += 1
        if self._gone == self._nprocs:
            answer = json.dumps({"lost": bool(self._lost()[0])}).encode() + b"\n"
            for each in self._waiting:
                with suppress(OSError):  # it was lost
                    each.sendall(answer)

    def _end_in_time(self, launcher: subprocess.Popen[bytes]) -> None:
        """End a launcher that does not end by itself. It may still wait for ranks that were lost. And where ranks can
        be lost, a rank of another node that calls MPI_Abort may end itself alone: SIGTERM ends all. If a rank is lost
        before MPI begins, MPI_Init waits for it on the others."""
        now = time.monotonic()
        if self._ends:
            if now >= self._deadline:
                self._ends.pop(0)()
                self._deadline = now + _SECONDS_TO_END
        elif self._code or self._gone == self._nprocs:
            self._ends = [*([launcher.terminate] if self._code else []), launcher.kill]
            self._deadline = now + _SECONDS_TO_END
        elif self._first_lost is not None and not self._mpi_begun and now >= self._deadline:
            lost = f"rank {self._first_lost} was lost before MPI began, which needs all ranks"
            print(f"mpicoll: {lost}. The job ends", file=sys.stderr, flush=True)
            self._code = 1
            launcher.terminate()

    def _lost(self) -> tuple[set[int], set[int]]:
        """The ranks that were lost, and those among them without which no rank has gone on."""
        lost = {*range(self._nprocs)} - self._ended.keys()
        return lost, lost.difference(*self._ended.values())

    def report(self, code: int) -> int:
        """The launcher has ended with this ``code``. One line on stderr says which ranks were lost. Returns the job's
        exit code: that of a rank that has failed, or the launcher's, or 1 if a rank was lost and no rank has gone on
        without it."""
        lost, missed = self._lost()
        if self._code:
            return self._code  # after MPI_Abort Open MPI's launcher may end with another code, even with 0
        if code > 0 or (code < 0 and self._gone < self._nprocs):
            return code  # what ended the job has been said already
        if not lost:
            return 0
        many = len(lost) > 1
        these = f"mpicoll: {len(lost)} of {self._nprocs} ranks {'were' if many else 'was'} lost ({named(sorted(lost))})"
        if missed:
            print(f"{these}, and no rank went on without {named(sorted(missed))}", file=sys.stderr)
            return 1
        print(f"{these}; the others went on to the end without {'them' if many else 'it'}", file=sys.stderr)
        return 0


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


# -- in a rank --------------------------------------------------------------------------------------------------------


_without: set[int] = set()
"""Ranks of MPI's world that this rank has gone on without."""
_parent: list[socket.socket] = []
"""The connection to ``mpicoll run``, if there is one."""
_failed = False
"""Whether this rank has said that it ends the job."""


def gone_without(ranks: Iterable[int]) -> None:
    """Note that this rank goes on without these ranks of MPI's world."""
    _without.update(ranks)


def lost() -> set[int]:
    """The ranks of MPI's world that this rank has gone on without."""
    return _without


def left(size: int) -> list[int]:
    """The ranks of MPI's world, which has so many, that this rank has not gone on without."""
    return [rank for rank in range(size) if rank not in _without]


def go_on_with(ranks: Sequence[int], size: int, me: int) -> None:
    """Note that these ranks of MPI's world are the job from now on, also in the variables that programs read."""
    gone_without({*range(size)}.difference(ranks))
    if len(ranks) < size and "RANK" in os.environ:
        os.environ.update(RANK=str(ranks.index(me)), WORLD_SIZE=str(len(ranks)))


def join() -> None:
    """Connect this rank to ``mpicoll run``. Raises LaunchError if that cannot be reached."""
    host, port, token = os.environ[ELASTIC].split(":")
    try:
        connection = socket.create_connection((host, int(port)), _SECONDS_TO_CONNECT)
    except OSError as e:
        raise LaunchError(f"this rank cannot reach `mpicoll run --elastic` at {host}:{port} ({e})") from e
    connection.settimeout(None)
    _parent.append(connection)
    lifecycle.set_exit(_end_as_lost)
    _say({"token": token, "rank": launched_rank()})


def _end_as_lost(status: int) -> NoReturn:
    """What ``os._exit`` does in a rank. Open MPI tells the other ranks of one that a signal ends, and not of one that
    exits with a code other than 0: they would wait for it."""
    if status:
        os.kill(os.getpid(), signal.SIGKILL)
    lifecycle.exit_now(status)


def fails(status: int) -> None:
    """Note that this rank ends the job with this exit code."""
    global _failed
    _failed = True
    _say({"fails": status})


def has_ended() -> None:
    """At this rank's end: say without which ranks it has gone on, wait for the others that are left, and end MPI.

    A rank that ends while others still communicate with it would be lost to them. MPI_Finalize may wait for ever for a
    rank that was lost. Then this ends the process without it, which Open MPI lets a rank do."""
    if _failed or not _parent:  # a process that a rank has started has no parent
        return
    _say({"without": sorted(_without)})
    connection, answer = _parent[0], b""
    connection.settimeout(_SECONDS_TO_PROGRESS)
    while not answer.endswith(b"\n"):
        try:
            answer += connection.recv(64) or b"{}\n"
        except TimeoutError:
            lifecycle.progress()  # messages of this rank may still be under way
    if not lifecycle.lives():
        return
    if not json.loads(answer).get("lost"):
        sys.modules["mpi4py.MPI"].Finalize()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _leave() -> None:
    lifecycle.set_exit(lifecycle.exit_now)
    while _parent:
        _parent.pop().close()


if is_elastic():
    lifecycle.add(lifecycle.Hook.LEAVE_JOB, has_ended)
    lifecycle.add(lifecycle.Hook.LEAVE_ELASTIC_JOB, _leave)
    lifecycle.add(lifecycle.Hook.TELL_BEGUN, lambda: _say({"begun": True}))


def _say(message: dict[str, Any]) -> None:
    """Tell ``mpicoll run``, if there is one. It may have been killed, and what this rank does next matters more."""
    for connection in _parent:
        with suppress(OSError):
            connection.sendall(json.dumps(message).encode() + b"\n")
