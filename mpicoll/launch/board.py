"""The board: memory of ``mpicoll run`` in which the ranks of its node say what they do, and which outlives them.

A rank may end without a word: MPICH ends the whole job where a message is longer than the memory for it, and any rank
may be killed. So each rank notes its calls on the board, and ``mpicoll run`` says after such an end what they were.
The board is a file that ranks of the same node open. A call is a number there. What the number means is noted once,
when the call is prepared. A rank that knows more leaves that to be said instead."""

from __future__ import annotations

import mmap
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct

from mpicoll.launch import lifecycle
from mpicoll.launch.launch_env import COORDINATOR, is_elastic, launched_rank
from mpicoll.machine import linux
from mpicoll.units import alike, named, rows

_VARIABLE = "MPICOLL_LAST_CALLS"
_NAME = "mpicoll-calls"
_MARK = 16
"""Random bytes at the beginning of the file, by which a rank recognises it. On another node, or in another container,
the same numbers of a process and a file mean another file."""
_TOLD, _STATUS, _INTERRUPTED = range(_MARK, _MARK + 3)
"""Where these bytes are: whether mpicoll has told why the job ends, the exit code that a rank wants for it (0 if that
is the launcher's), and what has become of Ctrl-C."""
_LEFT = _INTERRUPTED + 1
"""Where that is which a rank has left for ``mpicoll run`` to say."""
_HEAD = 1 << 14
_ROOM = 1 << 18
"""Bytes of each rank: numbers, and then what the last numbers of calls mean."""
_CALL, _PROCESS, _MPI, _CTRL_C = range(4)
"""The numbers of a rank: its last call, its process, its MPI, and whether Ctrl-C has reached it."""
_TEXTS, _TEXT = 1024, Struct("=QH244s")
_WORDS = Struct(f"=H{_HEAD - _LEFT - 2}s")
_KILLED = (9, 128 + 9)
"""Exit codes of launchers where SIGKILL has ended a rank."""
_OVER = (1 << 64) - 1
"""In the place of a call's number: the program has come to its end."""
BEGINS, BEGUN = 1, 2
"""A rank's MPI: it is within MPI_Init, or it has come back from there."""
INTERRUPTED, ENDED = 1, 2
"""Of a rank: Ctrl-C has reached it, and it has come to its end after that."""
WAIT, GO, APART = 1, 2, 3
"""After Ctrl-C, ranks that have ended wait for each other, until ``mpicoll run`` lets them go. Ranks of several nodes,
whose ends it does not see, have the whole time."""


# -- in mpicoll run ---------------------------------------------------------------------------------------------------


class CrashBoard:
    """The board of a job of ``nprocs`` ranks."""

    def __init__(self, nprocs: int) -> None:
        self.nprocs, self._mark = nprocs, secrets.token_bytes(_MARK)
        self.news, self._told_news = os.pipe()
        """Where a rank writes when it comes, and when it begins MPI; to be read. Only Linux lets it do so."""
        for end in (self.news, self._told_news):
            os.set_blocking(end, False)
        self._file, self._path = linux.new_file(_NAME)
        os.truncate(self._file, _HEAD + nprocs * _ROOM)
        os.pwrite(self._file, self._mark, 0)

    def variables(self) -> dict[str, str]:
        """What the ranks must find in their environment."""
        return {_VARIABLE: f"{self._mark.hex()}:{os.getpid()}:{self._told_news}:{self._path}"}

    def _number(self, rank: int, which: int) -> int:
        return int.from_bytes(os.pread(self._file, 8, _HEAD + rank * _ROOM + 8 * which), sys.byteorder)

    def process_of(self, rank: int) -> int:
        """The rank's process, 0 if it has not come so far."""
        return self._number(rank, _PROCESS)

    def is_over(self, rank: int) -> bool:
        """Whether the rank's program has come to its end."""
        return self._number(rank, _CALL) == _OVER

    def mpi_of(self, rank: int) -> int:
        """Whether the rank ``BEGINS`` MPI or has ``BEGUN`` it; 0 if neither."""
        return self._number(rank, _MPI)

    def interrupted(self) -> tuple[int, int]:
        """The number of ranks that Ctrl-C has reached, and of those that have ended after it."""
        states = [self._number(rank, _CTRL_C) for rank in range(self.nprocs)]
        return len(states) - states.count(0), states.count(ENDED)

    def after_ctrl_c(self, what: int) -> None:
        """Ctrl-C was pressed: let ranks that end ``WAIT``, ``GO``, or know that they are ``APART``."""
        os.pwrite(self._file, bytes([what]), _INTERRUPTED)

    def says(self, words: str) -> None:
        """Say this when the launcher has ended. The job has failed."""
        _leave(self._file, words)
        _end_with(self._file, 1)

    def send(self, number: int) -> None:
        """Send this signal to all ranks of this node whose programs run."""
        for rank in range(self.nprocs):
            if (process := self.process_of(rank)) and not self.is_over(rank):
                with suppress(ProcessLookupError):
                    os.kill(process, number)

    def report(self, code: int, first: Sequence[int] = ()) -> int:
        """The launcher has ended with this ``code``. Say what a rank has left to be said, or what the ranks called last
        and which one ended ``first`` (one of these), if the launcher failed and no table of all ranks has said it.
        Returns the exit code of the job."""
        told, wanted = os.pread(self._file, 2, _TOLD)
        length, words = _WORDS.unpack(os.pread(self._file, _WORDS.size, _LEFT))
        if length:
            print(words[:length].decode(errors="replace"), file=sys.stderr, flush=True)
        elif code and not told:
            calls = {rank: call for rank in range(self.nprocs) if (call := _call_of(self._file, rank))}
            killed = " (killed: often the system was out of memory, see dmesg)" if code in _KILLED else ""
            lines = [f"mpicoll: the job has ended with {code}{killed}."]
            if len(first) == 1:
                lines[0] += f" The process of rank {first[0]} was gone first."
            elif first:
                lines[0] += f" The processes of {named(first)} were gone at once: which was first is not known."
            if calls:
                lines[0] += " The last collective of each rank:"
                lines += rows([(ranks, call) for call, ranks in alike(calls).items()])
            if calls or first:
                print("\n".join(lines), file=sys.stderr, flush=True)
        return (code and wanted) or code

    def last_call(self, rank: int) -> str:
        """What a rank called last, as far as that is known."""
        return _call_of(self._file, rank)

    def left(self, words: str) -> bool:
        """Say this when the launcher has ended."""
        _leave(self._file, words)
        return True

    def wanted(self) -> int:
        """The exit code that a rank wants for the job; 0 if that is the launcher's."""
        return os.pread(self._file, 1, _STATUS)[0]

    def close(self) -> None:
        """Nobody asks it any more."""
        for file in (self._file, self.news, self._told_news):
            os.close(file)
        linux.forget(self._path)


def _call_of(file: int, rank: int) -> str:
    """The rank's last call, empty if it has made none or its program has come to its end."""
    start = _HEAD + rank * _ROOM
    number = int.from_bytes(os.pread(file, 8, start), sys.byteorder)
    if number in (0, _OVER):
        return ""
    noted, length, text = _TEXT.unpack(os.pread(file, _TEXT.size, start + _TEXT.size * (1 + number % _TEXTS)))
    return text[:length].decode(errors="replace") if noted == number else "a call that it has prepared long before"


# -- in a rank --------------------------------------------------------------------------------------------------------


def _opened(given: str) -> tuple[int | None, str]:
    """The file of ``mpicoll run``, and where it reads news. None if this rank was not started so, or on another
    node."""
    mark, process, news, path = (given.split(":", 3) + [""] * 3)[:4]
    try:
        if not mark or not linux.is_called(path, _NAME):
            return None, ""
        file = os.open(path, os.O_RDWR)
    except OSError:
        return None, ""
    if os.pread(file, _MARK, 0).hex() != mark:
        os.close(file)
        return None, ""
    return file, f"/proc/{process}/fd/{news}"


def _room_of(file: int | None, rank: int | None) -> mmap.mmap | None:
    """Where this rank notes its calls. None where nobody reads them, and in a process that a rank has spawned by MPI:
    its number is another rank's."""
    if file is None or rank is None or os.fstat(file).st_size < _HEAD + (rank + 1) * _ROOM:
        return None
    room = mmap.mmap(file, _ROOM, offset=_HEAD + rank * _ROOM)
    process = int.from_bytes(room[8 * _PROCESS : 8 * _PROCESS + 8], sys.byteorder)
    return room if process in (0, os.getpid()) else None


_given = os.environ.pop(_VARIABLE, "")
by_mpicoll_run = bool(_given)
"""Whether mpicoll run of some node has started this rank."""
_file, _news = _opened(_given)
are_read = _file is not None
"""Whether mpicoll run of this node reads what is noted."""
_room = _room_of(_file, launched_rank())
coordinator = os.environ.pop(COORDINATOR, "") if _room is not None or is_elastic() else ""
"""Where the coordinator listens that is in mpicoll run; empty if there is none."""
last: memoryview | list[int] = [0] if _room is None else memoryview(_room).cast("Q")
"""Its first element is the number of this rank's last call."""


def _tell() -> None:
    """Let ``mpicoll run`` look at this rank."""
    with suppress(OSError):  # it has been killed, or looks by itself
        file = os.open(_news, os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):  # it is full, so there is much to read already
            os.write(file, b"!")
        os.close(file)


if _room is not None:
    last[_PROCESS] = os.getpid()
    _tell()


def note_mpi(state: int) -> None:
    """Note whether this rank ``BEGINS`` MPI or has ``BEGUN`` it; 0 if neither."""
    if _room is not None:
        last[_MPI] = state
        _tell()


def note_ctrl_c(state: int) -> None:
    """Note that this rank is ``INTERRUPTED``, or has ``ENDED`` after that."""
    if _room is not None:
        last[_CTRL_C] = state


def after_ctrl_c() -> int:
    """What ``mpicoll run`` says of ranks that end after Ctrl-C; 0 if nobody has pressed it there."""
    return APART if _file is None else os.pread(_file, 1, _INTERRUPTED)[0]


def note(number: int, description: str) -> None:
    """Note what a number means."""
    if _room is not None:
        text = description.encode()[:244]
        _TEXT.pack_into(_room, _TEXT.size * (1 + number % _TEXTS), number, len(text), text)


def last_call(rank: int) -> str:
    """What a rank of this job called last, as far as that is known here."""
    return "" if _file is None else _call_of(_file, rank)


def told() -> None:
    """A table of all ranks, or the error of one, has said why the job ends: mpicoll run need not."""
    if _file is not None:
        os.pwrite(_file, b"\1", _TOLD)


def left(words: str) -> bool:
    """Leave it to mpicoll run to say this when its launcher has ended: a launcher that ends a job may lose what ranks
    write meanwhile. Returns whether it will."""
    if _file is None:
        return False
    _leave(_file, words)
    return True


def _leave(file: int, words: str) -> None:
    text = words.encode(errors="replace")[: _WORDS.size - 2]
    os.pwrite(file, _WORDS.pack(len(text), text), _LEFT)


def job_ends_with(status: int) -> None:
    """Let the job's exit code be this one, whatever the launcher's."""
    if _file is not None:
        _end_with(_file, status)


def _end_with(file: int, status: int) -> None:
    os.pwrite(file, bytes([status & 0xFF]), _STATUS)


def _over(rank: int = os.getpid()) -> None:
    if os.getpid() == rank:
        last[_CALL] = _OVER


lifecycle.add(lifecycle.Hook.NOTE_END, _over)
