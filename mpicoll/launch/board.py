"""The board: memory of ``mpicoll run`` in which the ranks of its node say what they do, and which outlives them.

A rank may end without a word: MPICH ends the whole job where a message is longer than the memory for it, and any rank
may be killed. So each rank notes its calls on the board, and ``mpicoll run`` says after such an end what they were.
The board is a file that ranks of the same node map. A call is a number there. What the number means is noted once,
when the call is prepared. A rank that no ``mpicoll run`` of its node has started notes all that in memory of its own,
which nobody reads."""

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
_HEAD = 1 << 12
_ROOM = 1 << 18
"""Bytes of each rank: numbers, and then what the last numbers of calls mean."""
_CALL, _PROCESS, _MPI, _CTRL_C = range(4)
"""The numbers of a rank: its last call, its process, its MPI, and whether Ctrl-C has reached it."""
_TEXTS, _TEXT = 1024, Struct("=QH244s")
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


# -- of both ----------------------------------------------------------------------------------------------------------


def _numbers(memory: mmap.mmap, rank: int) -> memoryview:
    """The numbers of this rank."""
    start = _HEAD + rank * _ROOM
    return memoryview(memory)[start : start + 32].cast("Q")


def _call_of(memory: mmap.mmap, rank: int) -> str:
    """The rank's last call, empty if it has made none or its program has come to its end."""
    number = _numbers(memory, rank)[_CALL]
    if number in (0, _OVER):
        return ""
    noted, length, text = _TEXT.unpack_from(memory, _text_at(rank, number))
    return str(text[:length], errors="replace") if noted == number else "a call that it has prepared long before"


def _text_at(rank: int, number: int) -> int:
    """Where it is noted what a rank's number means."""
    return _HEAD + rank * _ROOM + _TEXT.size * (1 + number % _TEXTS)


# -- in mpicoll run ---------------------------------------------------------------------------------------------------


class CrashBoard:
    """The board of a job of ``nprocs`` ranks."""

    def __init__(self, nprocs: int) -> None:
        self.nprocs, self._mark = nprocs, secrets.token_bytes(_MARK)
        self._file, self._path = linux.new_file(_NAME)
        os.truncate(self._file, _HEAD + nprocs * _ROOM)
        self._memory = mmap.mmap(self._file, 0)
        self._memory[:_MARK] = self._mark
        self._words = ""

    def variables(self) -> dict[str, str]:
        """What the ranks must find in their environment."""
        return {_VARIABLE: f"{self._mark.hex()}:{self._path}"}

    def _number(self, rank: int, which: int) -> int:
        return int(_numbers(self._memory, rank)[which])

    def process_of(self, rank: int) -> int:
        """The rank's process, 0 if it has not come so far."""
        return self._number(rank, _PROCESS)

    def is_over(self, rank: int) -> bool:
        """Whether the rank's program has come to its end."""
        return self._number(rank, _CALL) == _OVER

    def mpi_of(self, rank: int) -> int:
        """Whether the rank ``BEGINS`` MPI or has ``BEGUN`` it; 0 if neither."""
        return self._number(rank, _MPI)

    def last_call(self, rank: int) -> str:
        """What the rank called last, as far as that is known."""
        return _call_of(self._memory, rank)

    def interrupted(self) -> tuple[int, int]:
        """The number of ranks that Ctrl-C has reached, and of those that have ended after it."""
        states = [self._number(rank, _CTRL_C) for rank in range(self.nprocs)]
        return len(states) - states.count(0), states.count(ENDED)

    def after_ctrl_c(self, what: int) -> None:
        """Ctrl-C was pressed: let ranks that end ``WAIT``, ``GO``, or know that they are ``APART``."""
        self._memory[_INTERRUPTED] = what

    def told(self) -> None:
        """A table has said why the job ends."""
        self._memory[_TOLD] = 1

    def is_told(self) -> bool:
        """Whether it was said why the job ends."""
        return bool(self._words or self._memory[_TOLD])

    def wanted(self) -> int:
        """The exit code that a rank wants for the job; 0 if that is the launcher's."""
        return self._memory[_STATUS]

    def says(self, words: str) -> None:
        """Say this when the launcher has ended. The job has failed."""
        self._words, self._memory[_STATUS] = words, 1

    def send(self, number: int) -> None:
        """Send this signal to all ranks of this node whose programs run."""
        for rank in range(self.nprocs):
            if (process := self.process_of(rank)) and not self.is_over(rank):
                with suppress(ProcessLookupError):
                    os.kill(process, number)

    def report(self, code: int, first: Sequence[int] = ()) -> int:
        """The launcher has ended with this ``code``. Say why, or what the ranks called last and which one ended
        ``first`` (one of these), if the launcher failed and no table of all ranks has said it. Returns the exit code of
        the job."""
        if self._words:
            print(self._words, file=sys.stderr, flush=True)
        elif code and not self.is_told():
            calls = {rank: call for rank in range(self.nprocs) if (call := self.last_call(rank))}
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
        return (code and self.wanted()) or code

    def close(self) -> None:
        """Nobody asks it any more."""
        self._memory.close()
        os.close(self._file)
        linux.forget(self._path)


# -- in a rank --------------------------------------------------------------------------------------------------------


def _mapped(given: str, rank: int | None) -> mmap.mmap | None:
    """The board of ``mpicoll run``. None if this rank was not started so, or on another node, or if another rank has
    spawned this process by MPI: its number is another rank's."""
    mark, _, path = given.partition(":")
    try:
        if not mark or rank is None or not linux.is_called(path, _NAME):
            return None
        file = os.open(path, os.O_RDWR)
        memory = mmap.mmap(file, 0)
    except OSError:
        return None
    os.close(file)
    is_ours = memory[:_MARK].hex() == mark and len(memory) >= _HEAD + (rank + 1) * _ROOM
    return memory if is_ours and _numbers(memory, rank)[_PROCESS] in (0, os.getpid()) else None


_given = os.environ.pop(_VARIABLE, "")
by_mpicoll_run = bool(_given)
"""Whether mpicoll run of some node has started this rank."""
_common = _mapped(_given, launched_rank())
are_read = _common is not None
"""Whether mpicoll run of this node reads what is noted."""
_rank = (launched_rank() or 0) if are_read else 0
_memory = _common or mmap.mmap(-1, _HEAD + _ROOM)
last = _numbers(_memory, _rank)
"""Its first element is the number of this rank's last call."""
last[_PROCESS] = os.getpid()
_coordinator = os.environ.pop(COORDINATOR, "") if are_read or is_elastic() else ""


def note_mpi(state: int) -> None:
    """Note whether this rank ``BEGINS`` MPI or has ``BEGUN`` it; 0 if neither."""
    last[_MPI] = state


def note_ctrl_c(state: int) -> None:
    """Note that this rank is ``INTERRUPTED``, or has ``ENDED`` after that."""
    last[_CTRL_C] = state


def after_ctrl_c() -> int:
    """What ``mpicoll run`` says of ranks that end after Ctrl-C; 0 if nobody has pressed it there."""
    return _memory[_INTERRUPTED] if are_read else APART


def note(number: int, description: str) -> None:
    """Note what a number means."""
    text = description.encode()[:244]
    _TEXT.pack_into(_memory, _text_at(_rank, number), number, len(text), text)


def last_call(rank: int) -> str:
    """What a rank of this job called last, as far as that is known here."""
    return _call_of(_memory, rank) if are_read else ""


def told() -> None:
    """A table of all ranks, or the error of one, has said why the job ends: mpicoll run need not."""
    _memory[_TOLD] = 1


def job_ends_with(status: int) -> None:
    """Let the job's exit code be this one, whatever the launcher's."""
    _memory[_STATUS] = status & 0xFF


def coordinator(rank: int = os.getpid()) -> str:
    """Where the coordinator listens that is in mpicoll run. Empty if there is none, and in a child of a rank."""
    return _coordinator if os.getpid() == rank else ""


def _over(rank: int = os.getpid()) -> None:
    if os.getpid() == rank:
        last[_CALL] = _OVER


lifecycle.add(lifecycle.Hook.NOTE_END, _over)
