"""What a rank does when it fails: it reports the error, once for all ranks with the same one, and ends the job. It does
so on its stderr as that was when the rank began: what is in a test runner's own file is lost when the job ends."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from mpicoll.errors import PACKAGE, MpicollError, without
from mpicoll.launch import board, lifecycle
from mpicoll.launch.launch_env import is_elastic, launched_rank
from mpicoll.launch.lifecycle import flush
from mpicoll.machine import linux
from mpicoll.units import named

_STARTERS = ("<frozen runpy>", f"{PACKAGE}rank.py", f"{PACKAGE}launch{os.sep}program.py")
"""Files that start the user's program. Every traceback begins with their frames."""

_SECONDS_TO_GATHER = 0.5  # how long a rank waits for other ranks with the same error
_SECONDS_TO_READ = 0.25
"""How long a rank waits for its launcher to read the error's last line. Launchers that end a job drop the rest."""
_SECONDS_TO_END, _SECONDS_TO_CONNECT = 5.0, 1.0

_RANK = os.getpid()
"""The process that was started as a rank. What it forks is none."""

_stderr = 2  # the file of this process's stderr as it was when the rank began


def keep_stderr() -> None:
    global _stderr
    with suppress(OSError):  # it is closed
        _stderr = os.dup(2)


def say(text: str) -> None:
    """Write this, though another thread may hold Python's own lock of stderr. Where the program has put another file in
    the place of stderr, write it there, too.

    If the program has closed it, nobody can read this. Then the job must end all the same."""
    for file in dict.fromkeys((_stderr, 2)):
        with suppress(OSError):
            if file == _stderr or not os.path.sameopenfile(_stderr, file):
                os.write(file, text.encode(errors="replace") + b"\n")


def _close_stderr() -> None:
    global _stderr
    if _stderr != 2:
        os.close(_stderr)
        _stderr = 2


lifecycle.add(lifecycle.Hook.CLOSE_STDERR, _close_stderr)


def report(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """An excepthook. It prints the user's part of the traceback, and which ranks of this node have the same one."""
    text = "".join(traceback.TracebackException(kind, value, _users_part(value, trace)).format())
    if os.getpid() != _RANK:
        _write(text)
    else:
        _write_once(text, f"{kind.__name__}\n{text}")


def say_exit(error: SystemExit) -> None:
    """Say which ranks of this node exit with a failure, and where. Python would print a text once for each rank."""
    frames = traceback.extract_tb(_users_part(error, error.__traceback__))
    inner = [frame for frame in frames if frame.filename == frames[0].filename]
    where = f", at {Path(inner[-1].filename).name}:{inner[-1].lineno} in {inner[-1].name}" if inner else ""
    said = f"sys.exit({error.code}){where}" if isinstance(error.code, int) else f"sys.exit{where}\n{error.code}"
    _write_once(said, f"{said}\n")
    if not isinstance(error.code, int):
        error.code = 1


def _write_once(report: str, said: str) -> None:
    """Say by what all ranks have ended whose failure has this report."""
    with ExitStack() as until_printed:
        if ranks := _ranks_with(report, until_printed):
            _write(f"mpicoll: {named(ranks)} on {socket.gethostname()} ended by {said}")


def _write(report: str) -> None:
    sys.stderr.write(report)
    flush(sys.stderr)


def _users_part(value: BaseException, trace: TracebackType | None) -> TracebackType | None:
    """The traceback without what started the program; of mpicoll's errors and Ctrl-C, without all of mpicoll's."""
    is_ours = isinstance(value, (MpicollError, KeyboardInterrupt))
    return without(trace, ("<frozen runpy>", PACKAGE) if is_ours else _STARTERS)


def _ranks_with(report: str, until_printed: ExitStack) -> list[int]:
    """The ranks of this node whose failure has this report. The first of them gets the list, to print it, and closes
    the connections of the others at the end of ``until_printed``: they get an empty one after that."""
    rank = launched_rank() or 0
    try:
        is_first, sock = _meet(hashlib.sha256(report.encode(errors="replace")).hexdigest())
        until_printed.enter_context(sock)
        if not is_first:
            sock.settimeout(_SECONDS_TO_END)
            sock.sendall(rank.to_bytes(8))
            sock.recv(1)  # returns when the first rank has closed its end
            return []
    except OSError:  # the first rank has ended already
        return [rank]
    ranks, deadline = [rank], time.monotonic() + _SECONDS_TO_GATHER
    with suppress(OSError):  # the time is up, or a rank was killed before it had sent its number
        while (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            peer = until_printed.enter_context(sock.accept()[0])
            peer.settimeout(left)
            if linux.is_own(peer) and len(number := peer.recv(8)) == 8:
                ranks.append(int.from_bytes(number))
    return sorted({*ranks})  # several children of a rank may have it


def _meet(what: str) -> tuple[bool, socket.socket]:
    """Meet the ranks of the job on this node that ask for the same. The first one gets a socket that listens, and the
    others one that is connected to it. Raises OSError where they cannot meet, as where another user has the name."""
    job = os.environ.get("PMIX_NAMESPACE") or os.getppid()
    name, sock = linux.socket_name(f"mpicoll-{os.getuid()}-{job}-{what}"), socket.socket(socket.AF_UNIX)
    try:
        try:
            sock.bind(name)
            sock.listen(4096)
        except OSError as e:
            if e.errno != errno.EADDRINUSE:
                raise
            _connect(sock, name)
            if not linux.is_own(sock):
                raise
            return False, sock
    except OSError:
        sock.close()
        raise
    return True, sock


def _connect(sock: socket.socket, name: str) -> None:
    """Connect to the first rank. One that has just bound the name listens soon: this waits for it."""
    deadline = time.monotonic() + _SECONDS_TO_READ
    while True:
        try:
            return sock.connect(name)
        except ConnectionRefusedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


_names: list[socket.socket] = []  # what this process was the first to do on its node, as long as it lives


def is_first(what: str) -> bool:
    """Whether this is the first rank of the job on this node that asks so. True where that cannot be known."""
    try:
        first, sock = _meet(what)
    except OSError:
        return True
    if first:
        _names.append(sock)
    else:
        sock.close()
    return first


def end_job(status: int) -> None:
    """End all ranks of the job, with ``status`` as its exit code. MPI need not be initialised."""
    board.head.told = 1
    flush(sys.stdout)
    flush(sys.stderr)
    # Another rank may be about to print the report of all ranks that failed. To end the job now would prevent that.
    time.sleep(_SECONDS_TO_GATHER + _SECONDS_TO_READ)
    launcher = os.getppid()
    knows = status == 1 or board.are_read or is_elastic()
    if knows and launcher > 1 and linux.name_of(launcher) in ("mpirun", "prterun"):
        # SIGTERM makes Open MPI's launcher end all ranks, with exit code 1. It would do so after MPI_Abort too, but
        # then it also prints two boxes of text.
        if is_first("end"):  # the launcher complains about a second signal
            board.head.status = status & 0xFF
            with suppress(ProcessLookupError):
                os.kill(launcher, signal.SIGTERM)
        time.sleep(_SECONDS_TO_END)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized():
        if not mpi.Is_finalized():  # after MPI_Finalize no other rank can wait for this one
            with suppress(OSError):  # where it may open no more files
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # else MPICH prints that MPI_Abort was called
            mpi.COMM_WORLD.Abort(status)
    elif "PMI_FD" in os.environ and "MPI_LOCALNRANKS" in os.environ:
        try:
            os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={status}\n".encode())  # Hydra's PMI_Abort does so
        except OSError:  # the program has closed it, or the rank was another process, which has ended
            board.head.status = status & 0xFF  # mpicoll run ends the job if others wait for this rank
    elif "OMPI_COMM_WORLD_RANK" in os.environ:
        # Open MPI's launcher ends all ranks when one exits with a failure, but only once all have connected to it.
        time.sleep(_SECONDS_TO_CONNECT)
