"""What each rank called last, in memory that outlives it.

A rank may end without a word: MPICH ends the whole job where a message is longer than the memory for it, and any rank
may be killed. So each rank notes its calls in memory of ``mpicoll run``, which says after such an end what they were.
The memory is a file without a name, which ranks of the same node open through /proc. A call is a number there. What
the number means is noted once, when the call is prepared. A rank that knows more leaves that to be said instead."""

from __future__ import annotations

import atexit
import mmap
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct

from mpicoll.launch.alone import launched_rank
from mpicoll.units import alike, named, rows

_VARIABLE = "MPICOLL_LAST_CALLS"
_NAME = "mpicoll-calls"
_MARK = 16
"""Random bytes at the beginning of the file, by which a rank recognises it. On another node, or in another container,
the same numbers of a process and a file mean another file."""
_TOLD = _MARK
"""Where two bytes are: whether mpicoll has told why the job ends, and the exit code that a rank wants for it, 0 if that
is the launcher's."""
_LEFT = _TOLD + 2
"""Where that is which a rank has left for ``mpicoll run`` to say."""
_HEAD = 1 << 14
_ROOM = 1 << 18
"""Bytes of each rank: the number of its last call, its process, its MPI, and then what the last numbers mean."""
_TEXTS, _TEXT = 1024, Struct("=QH244s")
_WORDS = Struct(f"=H{_HEAD - _LEFT - 2}s")
_KILLED = (9, 128 + 9)
"""Exit codes of launchers where SIGKILL has ended a rank."""
_OVER = (1 << 64) - 1
"""In the place of a call's number: the program has come to its end."""
BEGINS, BEGUN = 1, 2
"""A rank's MPI: it is within MPI_Init, or it has come back from there."""


class Board:
    """The memory in which ``nprocs`` ranks note their calls, as ``mpicoll run`` has it."""

    def __init__(self, nprocs: int) -> None:
        self.nprocs, self._mark = nprocs, secrets.token_bytes(_MARK)
        self.news, self._told_news = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """Where a rank writes when it comes, and when it begins MPI; to be read."""
        self._file = os.memfd_create(_NAME)
        os.truncate(self._file, _HEAD + nprocs * _ROOM)
        os.pwrite(self._file, self._mark, 0)

    def variables(self) -> dict[str, str]:
        """What the ranks must find in their environment."""
        return {_VARIABLE: f"{os.getpid()}:{self._file}:{self._told_news}:{self._mark.hex()}"}

    def _number(self, rank: int, which: int) -> int:
        return int.from_bytes(os.pread(self._file, 8, _HEAD + rank * _ROOM + 8 * which), sys.byteorder)

    def process_of(self, rank: int) -> int:
        """The rank's process, 0 if it has not come so far."""
        return self._number(rank, 1)

    def is_over(self, rank: int) -> bool:
        """Whether the rank's program has come to its end."""
        return self._number(rank, 0) == _OVER

    def mpi_of(self, rank: int) -> int:
        """Whether the rank ``BEGINS`` MPI or has ``BEGUN`` it; 0 if neither."""
        return self._number(rank, 2)

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

    def close(self, code: int, gone: Sequence[int] = ()) -> int:
        """The launcher has ended with this ``code``. Say what a rank has left to be said, or what the ranks called last
        and which one was ``gone`` first (one of these), if the launcher failed and no table of all ranks has said it.
        Returns the exit code of the job."""
        told, wanted = os.pread(self._file, 2, _TOLD)
        length, words = _WORDS.unpack(os.pread(self._file, _WORDS.size, _LEFT))
        if length:
            print(words[:length].decode(errors="replace"), file=sys.stderr, flush=True)
        elif code and not told:
            calls = {rank: call for rank in range(self.nprocs) if (call := _call_of(self._file, rank))}
            killed = " (killed: often the system was out of memory, see dmesg)" if code in _KILLED else ""
            lines = [f"mpicoll: the job has ended with {code}{killed}."]
            if len(gone) == 1:
                lines[0] += f" The process of rank {gone[0]} was gone first."
            elif gone:
                lines[0] += f" The processes of {named(gone)} were gone at once: which was first is not known."
            if calls:
                lines[0] += " The last collective of each rank:"
                lines += rows([(ranks, call) for call, ranks in alike(calls).items()])
            if calls or gone:
                print("\n".join(lines), file=sys.stderr, flush=True)
        for file in (self._file, self.news, self._told_news):
            os.close(file)
        return (code and wanted) or code


def _call_of(file: int, rank: int) -> str:
    """The rank's last call, empty if it has made none or its program has come to its end."""
    start = _HEAD + rank * _ROOM
    number = int.from_bytes(os.pread(file, 8, start), sys.byteorder)
    if number in (0, _OVER):
        return ""
    noted, length, text = _TEXT.unpack(os.pread(file, _TEXT.size, start + _TEXT.size * (1 + number % _TEXTS)))
    return text[:length].decode(errors="replace") if noted == number else "a call that it has prepared long before"


# -- in a rank --------------------------------------------------------------------------------------------------------


def _opened() -> tuple[int | None, str]:
    """The file of ``mpicoll run``, and where it reads news. None if this rank was not started so, or on another
    node."""
    process, number, news, mark = (os.environ.pop(_VARIABLE, "").split(":") + [""] * 3)[:4]
    path = f"/proc/{process}/fd/{number}"
    try:
        if not mark or not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            return None, ""
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None, ""
    if os.pread(file, _MARK, 0).hex() != mark:
        os.close(file)
        return None, ""
    return file, f"/proc/{process}/fd/{news}"


def _room_of(file: int | None, rank: int | None) -> mmap.mmap | None:
    """Where this rank notes its calls. None where nobody reads them."""
    if file is None or rank is None or os.fstat(file).st_size < _HEAD + (rank + 1) * _ROOM:
        return None
    return mmap.mmap(file, _ROOM, offset=_HEAD + rank * _ROOM)


_file, _news = _opened()
are_read = _file is not None
"""Whether mpicoll run of this node reads what is noted."""
_room = _room_of(_file, launched_rank())
last: memoryview | list[int] = [0] if _room is None else memoryview(_room).cast("Q")
"""Its first element is the number of this rank's last call."""


def _tell() -> None:
    """Let ``mpicoll run`` look at this rank."""
    with suppress(OSError):  # it has been killed
        file = os.open(_news, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(BlockingIOError):  # it is full, so there is much to read already
            os.write(file, b"!")
        os.close(file)


if _room is not None:
    last[1] = os.getpid()
    _tell()


def note_mpi(state: int) -> None:
    """Note whether this rank ``BEGINS`` MPI or has ``BEGUN`` it; 0 if neither."""
    if _room is not None:
        last[2] = state
        _tell()


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
    os.pwrite(file, bytes([status & 0xFF]), _TOLD + 1)


def _over(rank: int = os.getpid()) -> None:
    if os.getpid() == rank:
        last[0] = _OVER


atexit.register(_over)
