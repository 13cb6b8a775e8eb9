"""Ctrl-C in a rank: it reaches the program as KeyboardInterrupt on every rank, which can then save a checkpoint.

``mpicoll run`` (``jobs/run.py``) passes it on, and ends the job when no rank is at work any more, or when its time is
up. A rank that comes to its end meanwhile says so on the board, and waits for the others."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from mpicoll.launch import board

NUMBER = int(signal.SIGRTMIN) + 5 if hasattr(signal, "SIGRTMIN") else int(signal.SIGVTALRM)
"""What Open MPI's launcher passes on to all ranks, as it never does SIGINT. macOS has no such free numbers."""
HANDED_ON = signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT  # the signals that reach the ranks as they are
PASSED = (*map(int, HANDED_ON), int(signal.SIGTSTP), NUMBER)
"""All that Open MPI's launcher has to pass on: version 5 passes no others on once it is told some."""
SECONDS = 30.0  # what ranks have to end by themselves

_rank = os.getpid()
_came = False


def came() -> bool:
    """Whether this rank was interrupted, and ends when ``mpicoll run`` lets it."""
    return _came and os.getpid() == _rank


def listen() -> None:
    """Let ``mpicoll run`` interrupt this rank's program: by KeyboardInterrupt, or what it has put in its place."""
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        signal.signal(NUMBER, _hear)
    elif board.by_mpicoll_run and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _hear)


def _hear(number: int, frame: FrameType | None) -> None:
    """``NUMBER`` reaches what the rank has forked, too. A DataLoader's worker may be needed to the end: it goes on."""
    global _came
    if os.getpid() == _rank:
        if not _came:
            _came = True
            board.me.ctrl_c = board.INTERRUPTED
        if number == NUMBER:
            signal.raise_signal(signal.SIGINT)
    if number != NUMBER:
        signal.default_int_handler(number, frame)


def wait_for_others(failed: bool) -> None:
    """Wait until the other ranks have ended, too, or the job is: a rank that ends may end all, if it ``failed``."""
    if not came():
        return
    if board.after_ctrl_c() == board.APART:
        time.sleep(SECONDS if failed else 0)
        return
    board.me.ctrl_c = board.ENDED
    deadline = time.monotonic() + SECONDS + 5
    while board.after_ctrl_c() == board.WAIT and time.monotonic() < deadline:
        time.sleep(0.1)
