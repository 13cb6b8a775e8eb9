"""Ctrl-C: it reaches the program as KeyboardInterrupt on every rank first, which can then save a checkpoint. The job
ends when no rank is at work any more, or when its time is up.

``mpicoll run`` stays beside the launcher, which gets a session of its own: a launcher that saw the terminal's Ctrl-C
could end the ranks at once. What ranks say to it are files in a folder. Ranks of other nodes would not see it. So a
job with such ranks does without the folder, and has the whole time."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from mpicoll.launch.beside import beside

NUMBER = 39
"""The signal (SIGRTMIN + 5) that Open MPI's launcher passes on to all ranks. It never passes SIGINT on, which MPICH's
does."""
_HANDED_ON = signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT
PASSED = (*map(int, _HANDED_ON), int(signal.SIGTSTP), NUMBER)
"""All that Open MPI's launcher has to pass on: version 5 passes no others on once it is told some."""
_SECONDS = 30.0
"""What ranks have to end by themselves."""
_SECONDS_IN_A_CALL = 2.0
"""Python sees a signal when a call of C ends. A rank that has not seen it so long after others came to their end waits
in a call, probably for one of them."""
_FOLDER = "MPICOLL_INTERRUPT"
_GO = "go"
_LOOKS = 0.1


# -- in mpicoll run ---------------------------------------------------------------------------------------------------


class Job:
    """A job of ranks on this node alone (``here``) or also on others. ``passes`` is the signal that the launcher passes
    on to the ranks. Those that end it are handed to ``instead``."""

    def __init__(self, nprocs: int, here: bool, passes: int, instead: Mapping[int, Callable[[int], object]]) -> None:
        self._nprocs, self._here, self._passes, self._instead = nprocs, here, passes, instead
        self._folder = Path(tempfile.gettempdir(), f"mpicoll-{secrets.token_hex(8)}")
        self._launcher = 0
        self.ended_by_user = False
        """Whether a signal came that ends a job."""
        self._interrupted = False
        self._ending: threading.Thread | None = None

    def variables(self) -> dict[str, str]:
        """What its ranks must find in their environment."""
        return {_FOLDER: str(self._folder) if self._here else os.devnull}

    def run(self, start: Callable[[], NoReturn], begun: Callable[[], object]) -> int:
        """Let a process ``start`` the launcher in its place, hand signals on to it, and return the exit code. ``begun``
        is called when there is the process."""
        handlers: dict[int, Callable[[int, FrameType | None], None]] = dict.fromkeys(
            (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT), self._end
        )
        handlers |= dict.fromkeys(_HANDED_ON, self._hand_on)
        handlers |= {signal.SIGINT: self._interrupt, signal.SIGTSTP: self._stop}
        for number, handler in handlers.items():
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handler)
        typed = os.pipe() if os.isatty(0) else None
        self._launcher = os.fork()
        if self._launcher == 0:
            try:
                os.setsid()
                _end_with_parent()
                if typed is not None:
                    os.dup2(typed[0], 0)
                start()
            except OSError as error:
                print(f"mpicoll: the launcher does not start: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(127)
        if typed is not None:
            os.close(typed[0])
            beside(_hand_on_what_is_typed, typed[1])
        begun()
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(self._launcher, 0)[1])
        finally:
            self._launcher = 0
            if self._ending is not None:  # it looks into the folder
                self._ending.join()
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._interrupted and code:
            return 128 + signal.SIGINT
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """End the job as failed."""
        self._hand_on(signal.SIGTERM)

    def _hand_on(self, number: int, _: FrameType | None = None) -> None:
        if number in self._instead:
            self._instead[number](number)
            if not self._here:
                said = f"mpicoll: {signal.Signals(number).name} reaches the ranks of this node alone: "
                os.write(2, f"{said}the launcher of this MPI does not pass it on\n".encode())
        elif self._launcher:
            with suppress(ProcessLookupError):
                os.kill(self._launcher, number)

    def _end(self, number: int, _: FrameType | None = None) -> None:
        self.ended_by_user = True
        self._hand_on(number)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._hand_on(number)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _interrupt(self, number: int, _: FrameType | None) -> None:
        if self._interrupted:
            self._end(signal.SIGTERM)
            return
        self._interrupted = self.ended_by_user = True
        said = f"mpicoll: interrupted: the ranks have {_SECONDS:.0f} s to end. Ctrl-C again ends them now\n"
        os.write(2, said.encode())
        if self._here:
            self._folder.mkdir(mode=0o700)
        self._hand_on(self._passes)
        self._ending = beside(self._end_in_time)

    def _end_in_time(self) -> None:
        began = changed = time.monotonic()
        seen = (0, 0)
        while (now := time.monotonic()) - began < _SECONDS and self._launcher:
            time.sleep(_LOOKS)
            came, over = (len(list(self._folder.glob(f"{what}-*"))) for what in ("came", "over"))
            if over == self._nprocs:
                (self._folder / _GO).touch()
                return
            if (came, over) != seen:
                seen, changed = (came, over), now
            elif now - changed > _SECONDS_IN_A_CALL and came == over > 0:
                break  # those that are left wait for those that are over
        self._hand_on(signal.SIGTERM)


def _hand_on_what_is_typed(to: int) -> None:
    """Hand on what somebody types: Open MPI's launcher does not read a terminal that is not its own."""
    with suppress(OSError):
        while os.tcgetpgrp(0) == os.getpgrp() and (
            typed := os.read(0, 4096)
        ):  # to read in the background would stop us
            os.write(to, typed)
    os.close(to)


def _end_with_parent() -> None:
    """Let this process get SIGTERM when its parent is killed: the ranks must not outlive it."""
    import ctypes

    with suppress(OSError, AttributeError):  # Linux has it
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


# -- in a rank --------------------------------------------------------------------------------------------------------

_rank = os.getpid()
_came = False
_folder = os.environ.pop(_FOLDER, "")


def came() -> bool:
    """Whether this rank was interrupted, and ends when ``mpicoll run`` lets it."""
    return _came and os.getpid() == _rank


def listen() -> None:
    """Raise KeyboardInterrupt in this rank's program, or do what the program has put in its place, when ``mpicoll run``
    is interrupted."""
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        signal.signal(NUMBER, _pass_on)
    elif _folder and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def _pass_on(number: int, frame: FrameType | None) -> None:
    if os.getpid() == _rank:  # what it has forked, such as a DataLoader's worker, may be needed to the end
        _note()
        signal.raise_signal(signal.SIGINT)


def _interrupted(number: int, frame: FrameType | None) -> None:
    if os.getpid() == _rank:
        _note()
    signal.default_int_handler(number, frame)


def _note() -> None:
    global _came
    if not _came:
        _came = True
        _say("came")


def wait_for_others(failed: bool) -> None:
    """Wait until the other ranks have ended their programs, too, or the job is ended: a rank that ends may end all, and
    one that has ``failed`` does."""
    if not came():
        return
    if not os.path.isdir(_folder):  # the signal was for this rank alone, or the ranks of other nodes cannot be seen
        time.sleep(_SECONDS if failed and _folder == os.devnull else 0)
        return
    _say("over")
    deadline = time.monotonic() + _SECONDS + 5
    while os.path.isdir(_folder) and not os.path.exists(os.path.join(_folder, _GO)) and time.monotonic() < deadline:
        time.sleep(_LOOKS)


def _say(what: str) -> None:
    if os.path.isdir(_folder):
        with suppress(OSError):
            Path(_folder, f"{what}-{_rank}").touch()
