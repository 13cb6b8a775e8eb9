"""The board: memory of ``mpicoll run`` in which the ranks of its node say what they do, and which outlives them.

A rank may end without a word: MPICH ends the whole job where a message is longer than the memory for it, and any rank
may be killed. So each rank notes its calls on the board, and ``mpicoll run`` says after such an end what they were.
The board is a file that ranks of the same node map. A call is a number there. What the number means is noted once, when
the call is prepared. A rank that no ``mpicoll run`` of its node has started has a board that nobody reads."""

from __future__ import annotations

import ctypes
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

_VARIABLE, _NAME = "MPICOLL_LAST_CALLS", "mpicoll-calls"
_HEAD, _ROOM = 1 << 12, 1 << 18
"""Bytes of the head, and of each rank: a ``_Rank``, and then what the last numbers of calls mean."""
_TEXTS, _TEXT = 1024, Struct("=QH244s")
_OVER = (1 << 64) - 1  # in the place of a call's number: the program has come to its end
BEGINS, BEGUN = 1, 2
"""A rank's MPI: it is within MPI_Init, or it has come back from there. 0 if neither."""
INTERRUPTED, ENDED = 1, 2  # of a rank: Ctrl-C has reached it, and it has come to its end after that
WAIT, GO, APART = 1, 2, 3
"""After Ctrl-C, ranks that have ended wait for each other, until ``mpicoll run`` lets them go. Ranks of several nodes,
whose ends it does not see, have the whole time. 0 if nobody has pressed it."""


class _Head(ctypes.Structure):
    mark: ctypes.Array[ctypes.c_uint8]
    """Random bytes by which a rank knows the file: elsewhere, or in a container, its name may be another one's."""
    told: int  # whether mpicoll has told why the job ends
    status: int  # the exit code that a rank wants for the job; 0 if that is the launcher's
    ctrl_c: int  # what ``mpicoll run`` says of ranks that end after Ctrl-C
    _fields_ = [("mark", ctypes.c_uint8 * 16), *((name, ctypes.c_uint8) for name in ("told", "status", "ctrl_c"))]


class _Rank(ctypes.Structure):
    call: int  # the number of the last one
    process: int  # 0 if the rank has not come so far
    mpi: int
    ctrl_c: int
    _fields_ = [(name, ctypes.c_uint64) for name in ("call", "process", "mpi", "ctrl_c")]


class Board:
    """The board in this memory."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory, self.head = memory, _Head.from_buffer(memory)
        starts = range(_HEAD, len(memory) - _ROOM + 1, _ROOM)
        self.ranks = [_Rank.from_buffer(memory, start) for start in starts]

    def last_call(self, rank: int) -> str:
        """What the rank called last: empty if it has made no call, or its program has come to its end."""
        number = self.ranks[rank].call
        if number in (0, _OVER):
            return ""
        noted, length, text = _TEXT.unpack_from(self.memory, _text_at(rank, number))
        return str(text[:length], errors="replace") if noted == number else "a call that it has prepared long before"


def _text_at(rank: int, number: int) -> int:
    """Where it is noted what a rank's number means."""
    return _HEAD + rank * _ROOM + _TEXT.size * (1 + number % _TEXTS)


# -- in mpicoll run ---------------------------------------------------------------------------------------------------


class CrashBoard(Board):
    """The board of a job of ``nprocs`` ranks."""

    def __init__(self, nprocs: int) -> None:
        self._file, self._path = linux.new_file(_NAME)
        os.truncate(self._file, _HEAD + nprocs * _ROOM)
        super().__init__(mmap.mmap(self._file, 0))
        self.head.mark[:] = [*secrets.token_bytes(len(self.head.mark))]
        self._words = ""

    def variables(self) -> dict[str, str]:
        """What the ranks must find in their environment."""
        return {_VARIABLE: f"{bytes(self.head.mark).hex()}:{self._path}"}

    def is_over(self, rank: int) -> bool:
        """Whether the rank's program has come to its end."""
        return self.ranks[rank].call == _OVER

    def interrupted(self) -> tuple[int, int]:
        """The number of ranks that Ctrl-C has reached, and of those that have ended after it."""
        states = [rank.ctrl_c for rank in self.ranks]
        return len(states) - states.count(0), states.count(ENDED)

    def is_told(self) -> bool:
        """Whether it was said why the job ends."""
        return bool(self._words or self.head.told)

    def says(self, words: str) -> None:
        """Say this when the launcher has ended. The job has failed."""
        self._words, self.head.status = words, 1

    def send(self, number: int) -> None:
        """Send this signal to all ranks of this node whose programs run."""
        for rank, its in enumerate(self.ranks):
            if its.process and not self.is_over(rank):
                with suppress(ProcessLookupError):
                    os.kill(its.process, number)

    def report(self, code: int, first: Sequence[int] = ()) -> int:
        """The launcher has ended with this ``code``. If it failed, and no table has said why, say what ranks called
        last, and which ended ``first`` (one of these). Returns the job's exit code."""
        if self._words:
            print(self._words, file=sys.stderr, flush=True)
        elif code and not self.is_told():
            calls = {rank: call for rank in range(len(self.ranks)) if (call := self.last_call(rank))}
            killed = " (killed: often the system was out of memory, see dmesg)" if code in (9, 128 + 9) else ""
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
        return (code and self.head.status) or code

    def close(self) -> None:
        os.close(self._file)
        linux.forget(self._path)


# -- in a rank --------------------------------------------------------------------------------------------------------


def _mapped(given: str, rank: int | None) -> Board | None:
    """The board of ``mpicoll run``. None if it has not started this rank, or runs on another node, or if another rank
    has spawned this process by MPI: its number is another rank's."""
    mark, _, path = given.partition(":")
    try:
        if not mark or rank is None or not linux.is_called(path, _NAME):
            return None
        file = os.open(path, os.O_RDWR)
        board = Board(mmap.mmap(file, 0))
    except OSError:
        return None
    os.close(file)
    is_ours = bytes(board.head.mark).hex() == mark and rank < len(board.ranks)
    return board if is_ours and board.ranks[rank].process in (0, os.getpid()) else None


_given = os.environ.pop(_VARIABLE, "")
by_mpicoll_run = bool(_given)  # whether mpicoll run of some node has started this rank
_common = _mapped(_given, launched_rank())
are_read = _common is not None  # whether mpicoll run of this node reads what is noted
_rank = (launched_rank() or 0) if are_read else 0
_board = _common or Board(mmap.mmap(-1, _HEAD + _ROOM))
head, me = _board.head, _board.ranks[_rank]  # what is said of the job, and what this rank says of itself
me.process = os.getpid()
last = memoryview(me).cast("B").cast("Q")  # its first element is the number of this rank's last call
_coordinator = os.environ.pop(COORDINATOR, "") if are_read or is_elastic() else ""


def after_ctrl_c() -> int:
    """What ``mpicoll run`` says of ranks that end after Ctrl-C."""
    return head.ctrl_c if are_read else APART


def note(number: int, description: str) -> None:
    """Note what a number means."""
    text = description.encode()[:244]
    _TEXT.pack_into(_board.memory, _text_at(_rank, number), number, len(text), text)


def last_call(rank: int) -> str:
    """What a rank of this job called last, as far as that is known here."""
    return _board.last_call(rank) if are_read else ""


def coordinator(rank: int = os.getpid()) -> str:
    """Where the coordinator listens that is in mpicoll run. Empty if there is none, and in a child of a rank."""
    return _coordinator if os.getpid() == rank else ""


def _over(rank: int = os.getpid()) -> None:
    if os.getpid() == rank:
        me.call = _OVER


lifecycle.add(lifecycle.Hook.NOTE_END, _over)
