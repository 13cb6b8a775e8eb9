"""A rank's failure: what it says of it, once for all ranks that fail alike, and the end of the whole job."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import ExitStack, suppress
from io import StringIO
from pathlib import Path
from types import TracebackType

from mpicoll.errors import MpicollError
from mpicoll.launch.alone import launched_rank

__all__ = ["end_job", "hook"]

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_STARTERS = ("<frozen runpy>", *map(os.path.normpath, ("mpi4py/run.py", "mpicoll/rank.py", "mpicoll/launch/rank.py")))
"""Files whose frames stand above the user's program in every traceback."""

_SECONDS_TO_GATHER = 0.5
_SECONDS_TO_READ = 0.25
"""Launchers drop what they have not read yet when they end a job: the error's last line, which says it all."""
_SECONDS_TO_END = 5.0
_SECONDS_TO_CONNECT = 1.0


def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """An excepthook: print the user's part of the traceback, and which ranks of this node failed like that."""
    shown = "".join(traceback.TracebackException(kind, value, _users_part(value, trace)).format())
    with ExitStack() as until_printed:
        ranks = _alike(shown, until_printed)
        if ranks:
            # torch.distributed's hook collects what is printed to stderr, and may not come to print it.
            stream = sys.__stderr__ if isinstance(sys.stderr, StringIO) and sys.__stderr__ else sys.stderr
            which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_ranges(ranks)}"
            stream.write(f"mpicoll: {which} on {socket.gethostname()} ended by {kind.__name__}\n{shown}")
            stream.flush()


def _users_part(value: BaseException, trace: TracebackType | None) -> TracebackType | None:
    """The traceback without what started the program, and without the inside of mpicoll where it reports an error."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    files = [frame.tb_frame.f_code.co_filename for frame in frames]
    first, last = 0, len(frames)
    while first < last and files[first].endswith(_STARTERS):
        first += 1
    if isinstance(value, MpicollError):
        while last > first and files[last - 1].startswith(_PACKAGE):
            last -= 1
    kept = None
    for frame in reversed(frames[first:last]):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _alike(shown: str, until_printed: ExitStack) -> list[int]:
    """The ranks of this node that fail with this text, for one of them to print; for the others, none.

    The first binds a socket whose name is the job and the text. The others tell it their ranks, and wait until it has
    printed. Linux removes an abstract socket with its process. Elsewhere each rank prints for itself.
    """
    mine = launched_rank() or 0
    name = _socket_name(hashlib.sha256(shown.encode(errors="replace")).hexdigest())
    try:
        sock = until_printed.enter_context(socket.socket(socket.AF_UNIX))
        try:
            sock.bind(name)
        except OSError:
            sock.settimeout(_SECONDS_TO_END)
            sock.connect(name)
            sock.sendall(mine.to_bytes(8))
            sock.recv(1)  # nothing comes: the other end is closed
            return []
        sock.listen(4096)
    except (OSError, ValueError):  # no such sockets here, or the one that printed is gone
        return [mine]
    found, deadline = [mine], time.monotonic() + _SECONDS_TO_GATHER
    with suppress(OSError):  # time is up, or a rank is killed while it speaks
        while (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            peer = until_printed.enter_context(sock.accept()[0])
            peer.settimeout(left)
            if len(rank := peer.recv(8)) == 8:
                found.append(int.from_bytes(rank))
    return sorted(found)


def _socket_name(what: str) -> str:
    job = os.environ.get("PMIX_NAMESPACE") or os.getppid()
    return f"\0mpicoll-{os.getuid()}-{job}-{what}"


def _ranges(ranks: list[int]) -> str:
    """Ascending numbers as ``0-3, 5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)


def end_job(status: int) -> None:
    """End all ranks of the job with ``status`` as its exit code; MPI need not be initialised."""
    sys.stdout.flush()
    sys.stderr.flush()
    # A rank that just exits says nothing: another one may be about to say why, once it knows who fails alike.
    time.sleep(_SECONDS_TO_GATHER + _SECONDS_TO_READ)
    launcher = os.getppid()
    if status == 1 and launcher > 1 and _name(launcher) in ("mpirun", "prterun"):
        # So Open MPI's launcher ends all ranks with this code. After MPI_Abort it would print two boxes besides.
        with socket.socket(socket.AF_UNIX) as sock:
            with suppress(OSError):  # another rank did it: a second signal is a complaint
                sock.bind(_socket_name("end"))
                os.kill(launcher, signal.SIGTERM)
            time.sleep(_SECONDS_TO_END)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized():
        if not mpi.Is_finalized():  # else the others wait for nothing any more
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPICH would say that MPI_Abort was called
            mpi.COMM_WORLD.Abort(status)
    elif "PMI_FD" in os.environ and "MPI_LOCALNRANKS" in os.environ:
        os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={status}\n".encode())  # what Hydra's PMI_Abort writes
    elif "OMPI_COMM_WORLD_RANK" in os.environ:
        time.sleep(_SECONDS_TO_CONNECT)  # once all are connected, Open MPI ends them when one exits with a failure


def _name(process: int) -> str:
    """The name of a process's program."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""
