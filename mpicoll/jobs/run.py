"""``mpicoll run``: start a job, stay beside its launcher, hand signals on to it, and say how it has ended.

Ctrl-C goes to the ranks first. The launcher has a session of its own: one that saw the terminal's Ctrl-C could end the
ranks at once."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from mpicoll.errors import ArgumentError
from mpicoll.jobs.launcher import Command, Job, command
from mpicoll.launch import board
from mpicoll.launch.elastic import Outcome
from mpicoll.launch.interrupt import HANDED_ON, LOOKS, SECONDS
from mpicoll.launch.launch_env import STDIN
from mpicoll.machine import linux
from mpicoll.machine.system import exit_code
from mpicoll.supervise.host import Host

_SECONDS_IN_A_CALL = 2.0
"""Python sees a signal when a call of C ends. A rank that has not seen it so long after others came to their end waits
in a call, probably for one of them."""
_SECONDS_TO_BEGIN = 1.0
"""A rank that is still within MPI_Init so long after another one has ended without it waits for that one."""
_SECONDS_BETWEEN_LOOKS = 0.05
"""How often ranks are looked at until MPI has begun on all of them, and longer where the system does not tell when one
ends."""
_FOLDER = "PRTE_MCA_prte_tmpdir_base"
"""The variable that tells Open MPI's launcher where its files are."""
_SECONDS_TO_END = 10.0
"""What the launcher may take to end after the last rank has, where some were lost, or after one has failed."""


def run(job: Job) -> int:
    """Start the job, and return its exit code: the launcher's, unless a rank wants another one. A job that fails is
    started again as often as it says.

    Raises ArgumentError if the script or the hostfile does not exist, and LaunchError if there is no MPI."""
    name = job.program[0]
    if name not in ("-m", "-c") and not os.path.exists(name):
        leave_out = " (leave out `python`)" if os.path.basename(name).startswith("python") else ""
        raise ArgumentError("run", "script", "a file", repr(name) + leave_out)
    if job.hostfile is not None and not os.path.isfile(job.hostfile):
        raise ArgumentError("run", "--hostfile", "a file", repr(job.hostfile))
    launch = command(job)
    if job.dry_run:
        print(launch)
        return 0
    sys.stdout.flush()
    stdin = _given_to_rank_0() if job.on_this_node else {}
    for restarted in range(job.restarts + 1):
        attempt = _Attempt(job, launch, stdin)
        torchs = {"TORCHELASTIC_RESTART_COUNT": str(restarted), "TORCHELASTIC_MAX_RESTARTS": str(job.restarts)}
        code = attempt.run(torchs if job.restarts else {})
        if code == 0 or attempt.ended_by_user or restarted == job.restarts:
            break
        print(f"mpicoll: the job has failed ({code}). Restart {restarted + 1} of {job.restarts}", file=sys.stderr)
    return code


class _Attempt:
    """One start of a job, from ``run`` to its end. ``stdin`` has the variables that tell rank 0 where it is. There are
    none if the launcher reads it."""

    def __init__(self, job: Job, launch: Command, stdin: dict[str, str]) -> None:
        self._job, self._launch, self._stdin = job, launch, stdin
        self._board = board.CrashBoard(job.nprocs)
        self._host = Host(job, self._board)
        self._launcher: subprocess.Popen[bytes] | None = None
        self.ended_by_user = False
        """Whether a signal came that ends a job."""
        self._interrupted = False
        self._ending: threading.Thread | None = None

    def run(self, variables: dict[str, str]) -> int:
        """Start the launcher, wait for its end, and return the exit code of the job."""
        handlers: dict[int, Callable[[int, FrameType | None], None]] = dict.fromkeys(
            (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT), self._end
        )
        handlers |= dict.fromkeys(HANDED_ON, self._hand_on)
        handlers |= {signal.SIGINT: self._interrupt, signal.SIGTSTP: self._stop}
        for number, handler in handlers.items():
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handler)
        # Open MPI's launcher keeps files under the number of its process. It does not start where one that was killed,
        # and had the same number, has left some. So it gets a folder of its own.
        with ExitStack() as until_ended:
            until_ended.callback(self._board.close)
            if self._job.on_this_node and _FOLDER not in os.environ:
                folder = TemporaryDirectory(prefix="mpicoll-", ignore_cleanup_errors=True)
                variables = {**variables, _FOLDER: until_ended.enter_context(folder)}
            return self._monitor(variables)

    def _monitor(self, variables: dict[str, str]) -> int:
        outcome = self._host.outcome
        launcher = self._start(variables | self._host.variables)
        monitor = ExitMonitor(self._board, self._end_waiting)
        watching = _masked_thread(monitor.watch)
        serving = _masked_thread(self._host.serve, monitor)
        code = self._code(launcher.wait() if outcome is None else self._attend(launcher, outcome))
        first = monitor.stop(watching)
        self._host.stop(serving)
        if outcome is None:
            return (code or self._board.head.status) if self.ended_by_user else self._board.report(code, first)
        self._board.report(0)  # what ranks have left to be said
        outcome.code = outcome.code or self._board.head.status
        return code if self._interrupted and code else outcome.report(self._job.nprocs, self._lost(outcome), code)

    def _lost(self, outcome: Outcome) -> set[int]:
        """The ranks that have not come to their end in order. Of those on other nodes, only such are known that have
        made a communicator."""
        known = {*range(self._job.nprocs)} if self._job.on_this_node else outcome.gone | outcome.without
        return {rank for rank in known - outcome.ended if not self._board.is_over(rank)}

    def _attend(self, launcher: subprocess.Popen[bytes], outcome: Outcome) -> int:
        """Wait for the end of a launcher whose ranks may be lost, and end it if it does not end by itself. It may still
        wait for ranks that were lost. And where ranks can be lost, a rank of another node that calls MPI_Abort may end
        itself alone: SIGTERM ends all. Returns its exit code."""
        since, ends = 0.0, [launcher.kill, launcher.terminate]
        while (code := launcher.poll()) is None:
            time.sleep(LOOKS)
            if outcome.code or (len(outcome.gone) == self._job.nprocs and self._lost(outcome)):
                since = since or time.monotonic()
                if ends and time.monotonic() - since >= _SECONDS_TO_END:
                    ends.pop()()
                    since = 0.0
        return code if len(ends) == 2 else 0  # that it was ended here says nothing of the job

    def _code(self, of_launcher: int) -> int:
        """The exit code where the launcher has ended with this one."""
        if self._ending is not None:  # it looks at the board
            self._ending.join()
        if self._interrupted and of_launcher:
            return 128 + signal.SIGINT
        return of_launcher if of_launcher >= 0 else 128 - of_launcher

    def _start(self, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the launcher, while no other thread runs. It reads stdin where rank 0 does not do so itself.

        It has a session of its own: a Ctrl-C in the terminal reaches this process alone. On Linux, it gets SIGTERM when
        this process is killed."""
        stdin = subprocess.DEVNULL if self._stdin else None
        typed = os.pipe() if stdin is None and os.isatty(0) else None
        self._launcher = launcher = subprocess.Popen(
            self._launch.argv,
            env=self._launch.environment() | variables | self._board.variables() | self._stdin,
            stdin=stdin if typed is None else typed[0],
            start_new_session=True,
            preexec_fn=partial(linux.end_with_parent, signal.SIGTERM),
        )
        if typed is not None:
            os.close(typed[0])
            _masked_thread(_hand_on_what_is_typed, typed[1])
        return launcher

    def _end_waiting(self, rank: int) -> None:
        """End a job whose ranks wait for one that has ended."""
        self._board.says(f"mpicoll: rank {rank} has ended before MPI began, which needs all ranks. The job ends")
        self._hand_on(signal.SIGTERM)

    def _hand_on(self, number: int, _: FrameType | None = None) -> None:
        if number in self._launch.not_passed:
            self._board.send(number)
            if not self._job.on_this_node:
                said = f"mpicoll: {signal.Signals(number).name} reaches the ranks of this node alone: "
                os.write(2, f"{said}the launcher of this MPI does not pass it on\n".encode())
        elif self._launcher is not None:
            self._launcher.send_signal(number)

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
        said = f"mpicoll: interrupted: the ranks have {SECONDS:.0f} s to end. Ctrl-C again ends them now\n"
        os.write(2, said.encode())
        self._board.head.ctrl_c = board.WAIT if self._job.on_this_node else board.APART
        self._hand_on(self._launch.passes)
        self._ending = _masked_thread(self._end_in_time)

    def _end_in_time(self) -> None:
        began = changed = time.monotonic()
        seen = (0, 0)
        while (now := time.monotonic()) - began < SECONDS and self._runs():
            time.sleep(LOOKS)
            came, over = self._board.interrupted()
            if over == self._job.nprocs:
                self._board.head.ctrl_c = board.GO
                return
            if (came, over) != seen:
                seen, changed = (came, over), now
            elif now - changed > _SECONDS_IN_A_CALL and came == over > 0:
                break  # those that are left wait for those that are over
        self._hand_on(signal.SIGTERM)

    def _runs(self) -> bool:
        return self._launcher is not None and self._launcher.returncode is None


class ExitMonitor:
    """Which rank's process has ended first, from ``watch`` to ``stop``, and whether others wait for it in vain.

    MPICH's launcher names a process when it ends a job, and often one that it has ended itself. So the processes are
    looked at beside it. Linux tells at once when one ends. What else ranks do, and elsewhere all, is on the board, at
    which this looks again and again. ``waited_for`` is called with a rank that has ended without MPI, as soon as
    another one waits for it in MPI_Init, where it would do so for ever."""

    def __init__(self, of_job: board.CrashBoard, waited_for: Callable[[int], object]) -> None:
        self._board, self._waited_for = of_job, waited_for
        self._running: dict[int, int | None] = {}
        """The ranks that have come and not ended, and what can be read when their processes end."""
        self._ended: set[int] = set()
        self.first: list[int] = []
        """The rank that ended before all others, and before its program did. They are several if one of them was the
        first and it is not known which."""
        self._woken, self._wake = os.pipe()

    def stop(self, watching: threading.Thread) -> list[int]:
        """Let ``watch``, which runs in this thread, return after a last look. Returns ``first``."""
        os.close(self._wake)
        watching.join()
        os.close(self._woken)
        return self.first

    def watch(self) -> None:
        """Look at the processes until ``stop``. This process forks none meanwhile."""
        over, all_begun, seen, since = False, False, None, 0.0
        while not over:
            over = self._woken in self._ready(None if linux.TELLS and all_begun else _SECONDS_BETWEEN_LOOKS)
            ended = self._look()
            self._ended |= ended
            states = {rank: self._board.ranks[rank].mpi for rank in self._running}
            all_begun = len(states) == len(self._board.ranks) and {*states.values()} == {board.BEGUN}
            others_wait = board.BEGINS in states.values()
            early = {rank for rank in ended if not self._board.is_over(rank) or (others_wait and self._lacks(rank))}
            if early and not self.first:
                self.first = self._first_of(early)
            waited_for = sorted(rank for rank in self._ended if others_wait and self._lacks(rank))
            if seen != (waited_for, states):
                seen, since = (waited_for, states), time.monotonic()
            elif waited_for and time.monotonic() - since >= _SECONDS_TO_BEGIN:
                self._waited_for(waited_for[0])
                break
        for file in filter(None, self._running.values()):
            os.close(file)

    def _ready(self, seconds: float | None) -> set[int]:
        """Which of the files can be read, within so many seconds; None for ever."""
        poll = select.poll()
        for file in (self._woken, *filter(None, self._running.values())):
            poll.register(file, select.POLLIN)
        return {file for file, _ in poll.poll(None if seconds is None else 1000 * seconds)}

    def _look(self) -> set[int]:
        """Watch the ranks that have come since the last look. Returns those whose processes have ended since then."""
        for rank in {*range(len(self._board.ranks))} - self._ended - self._running.keys():
            if process := self._board.ranks[rank].process:
                self._running[rank] = linux.end_of(process)
        ended, ready = set(), self._ready(0)
        for rank, file in [*self._running.items()]:
            if file in ready or (file is None and linux.has_ended(self._board.ranks[rank].process)):
                ended.add(rank)
                del self._running[rank]
                if file is not None:
                    os.close(file)
        return ended

    def _first_of(self, early: Iterable[int]) -> list[int]:
        """Which of these ranks, which have ended between two looks, ended first.

        A launcher ends the others as soon as it sees that a rank ends, which it may see before that rank's process has
        gone. So a rank that is about to end may be the first, too. If one of them has ended by itself, it is the first:
        a launcher ends processes by SIGKILL or SIGTERM."""
        codes: dict[int, int | None] = {}
        for rank in {*early, *(rank for rank in self._running if not self._board.is_over(rank))}:
            try:
                codes[rank] = exit_code(self._board.ranks[rank].process)
            except OSError:  # its launcher knows already that it has ended
                codes[rank] = 0
        alone = [rank for rank, code in codes.items() if code not in (None, 0, -signal.SIGKILL, -signal.SIGTERM)]
        return alone if len(alone) == 1 else sorted(rank for rank, code in codes.items() if code is not None)

    def _lacks(self, rank: int) -> bool:
        """Whether MPI has not begun in this rank."""
        return self._board.ranks[rank].mpi != board.BEGUN


def _masked_thread(do: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Start a thread that gets no signals. Python handles them in the main thread alone, and that one does not wake up
    for a signal that another thread got. ``timeout`` sends two at once, and then another thread often gets one."""
    thread = threading.Thread(target=do, args=arguments, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


def _given_to_rank_0() -> dict[str, str]:
    """What rank 0 must find in its environment to read this process's stdin. Empty if the launcher reads it.

    Open MPI's launcher passes stdin on without its end, so that rank 0 waits for ever (openpmix/prrte#2373), and may
    repeat parts of a long one (#2579). MPICH's lets the other ranks wait for ever. So rank 0 opens the stdin of
    ``mpicoll run`` itself, and that of the others is empty."""
    try:
        found = os.fstat(0)
    except OSError:  # it is closed: the next file that is opened would be taken for it
        os.open(os.devnull, os.O_RDONLY)
        found = os.fstat(0)
    path = f"/proc/{os.getpid()}/fd/0"
    if os.isatty(0) or stat.S_ISSOCK(found.st_mode) or not os.path.exists(path):  # what no other process can open
        return {}
    return {STDIN: f"{found.st_dev}:{found.st_ino}:{path}"}


def _hand_on_what_is_typed(to: int) -> None:
    """Hand on what somebody types: Open MPI's launcher does not read a terminal that is not its own."""
    with suppress(OSError):
        while os.tcgetpgrp(0) == os.getpgrp() and (
            typed := os.read(0, 4096)
        ):  # to read in the background would stop us
            os.write(to, typed)
    os.close(to)
