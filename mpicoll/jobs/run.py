"""``mpicoll run``: start a job, stay beside its launcher, hand signals on to it, and say how it has ended. Ctrl-C goes
to the ranks first. The launcher has a session of its own: one that saw the terminal's Ctrl-C could end them at once."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from functools import partial
from math import inf
from tempfile import TemporaryDirectory
from types import FrameType

from mpicoll.errors import ArgumentError
from mpicoll.jobs.launcher import Command, Job, command
from mpicoll.launch import board
from mpicoll.launch.elastic import Outcome
from mpicoll.launch.interrupt import HANDED_ON, SECONDS
from mpicoll.launch.launch_env import STDIN
from mpicoll.machine import linux
from mpicoll.machine.system import exit_code
from mpicoll.supervise.host import Host

_SECONDS_IN_A_CALL = 5.0
"""Where others are at their end for so long, a rank that has not seen the signal waits in C, or for a busy machine."""
_SECONDS_TO_BEGIN = 1.0
"""A rank that is still within MPI_Init so long after another one has ended without it waits for that one."""
_FOLDER = "PRTE_MCA_prte_tmpdir_base"  # the variable that tells Open MPI's launcher where its files are
_SECONDS_TO_END = 10.0
"""What the launcher may take to end after the last rank has, where some were lost, or after one has failed."""


def run(job: Job) -> int:
    """Start the job, and return its exit code: the launcher's, unless a rank wants another one. A job that fails is
    started again as often as it says.

    Raises ArgumentError if the script or the hostfile does not exist, and LaunchError if there is no MPI."""
    name = job.program[0]
    if name not in ("-m", "-c") and not os.path.isfile(name):
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
    """One start of a job. ``stdin`` tells rank 0 where it is; it is empty if the launcher reads it."""

    def __init__(self, job: Job, launch: Command, stdin: dict[str, str]) -> None:
        self._job, self._launch, self._stdin = job, launch, stdin
        self._board = board.CrashBoard(job.nprocs)
        self._host = Host(job, self._board)
        self._launcher: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []  # the signals that end the job and came before the launcher was there
        self.ended_by_user = False  # whether a signal came that ends a job
        self._interrupted = 0.0  # when Ctrl-C was pressed
        self._changed, self._seen = 0.0, (0, 0)
        """When the ranks' answers to Ctrl-C have changed last, and what they are."""
        self._waits_in_vain = False  # whether the job was ended because ranks wait in MPI_Init for one that has ended
        self._hangs_since = 0.0
        self._ends = [signal.SIGKILL, signal.SIGTERM]
        """What has not been sent yet to a launcher that does not end, the last one first."""

    def run(self, variables: dict[str, str]) -> int:
        """Start the launcher, wait for its end, and return the exit code of the job."""
        handlers = {signal.SIGINT: self._interrupt, signal.SIGTSTP: self._stop}
        handlers |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT), self._end)
        handlers |= dict.fromkeys(HANDED_ON, self._hand_on)
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
            launcher = self._start(variables | self._host.variables)
            monitor = ExitMonitor(self._board, launcher.pid)
            until_ended.callback(monitor.close)
            serving = threading.Thread(target=self._host.serve, args=[monitor], daemon=True)
            serving.start()
            self._watch(launcher, monitor)
            if launcher.returncode < 0:  # it was killed: Open MPI's ranks would go on
                monitor.kill()
            self._host.stop(serving)
            return self._code(launcher.returncode, monitor.first)

    def _start(self, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the launcher, while no other thread runs. It reads stdin where rank 0 does not do so itself. On Linux,
        it gets SIGTERM when this process is killed."""
        self._launcher = launcher = subprocess.Popen(
            self._launch.argv,
            env=self._launch.environment | variables | self._board.variables() | self._stdin,
            stdin=subprocess.DEVNULL if self._stdin else None,
            start_new_session=True,
            preexec_fn=partial(linux.end_with_parent, signal.SIGTERM),
        )
        for number in self._early:
            launcher.send_signal(number)
        return launcher

    def _watch(self, launcher: subprocess.Popen[bytes], monitor: ExitMonitor) -> None:
        """Look at the ranks until the launcher has ended. This process forks none meanwhile."""
        while launcher.poll() is None:
            seldom = linux.TELLS and monitor.all_begun and not self._interrupted
            monitor.wait(0.5 if seldom else 0.05)  # and until a process ends
            waited_for = monitor.look()
            if waited_for is not None and not self._waits_in_vain:
                self._waits_in_vain = True
                if not self._board.is_told():
                    said = f"mpicoll: rank {waited_for} has ended before MPI began, which needs all ranks. The job ends"
                    self._board.says(said)
                self._hand_on(signal.SIGTERM)
            if 0 < self._interrupted < inf:
                self._end_in_time()
            if self._host.outcome is not None:
                self._end_hanging(self._host.outcome)
        monitor.look()

    def _code(self, of_launcher: int, first: list[int]) -> int:
        """The exit code of the job where the launcher has ended with this one, after a word on how it has ended."""
        code, outcome = of_launcher if of_launcher >= 0 else 128 - of_launcher, self._host.outcome
        if len(self._ends) < 2:
            code = 0  # that it was ended here says nothing of the job
        if self._interrupted and code:
            code = 128 + signal.SIGINT
        if outcome is None:
            return (code or self._board.head.status) if self.ended_by_user else self._board.report(code, first)
        self._board.report(0)  # what ranks have left to be said
        outcome.code = outcome.code or self._board.head.status
        return code if self._interrupted and code else outcome.report(self._job.nprocs, self._lost(outcome), code)

    # -- ranks that may be lost

    def _lost(self, outcome: Outcome) -> set[int]:
        """The ranks that did not end in order. On other nodes, only those are known that made a communicator."""
        known = {*range(self._job.nprocs)} if self._job.on_this_node else outcome.gone | outcome.without
        return {rank for rank in known - outcome.ended if not self._board.is_over(rank)}

    def _end_hanging(self, outcome: Outcome) -> None:
        """End a launcher that does not end by itself. It may still wait for ranks that were lost. And a rank of another
        node that calls MPI_Abort may end itself alone: SIGTERM ends all."""
        now = time.monotonic()
        if not self._ends or not (outcome.code or (len(outcome.gone) == self._job.nprocs and self._lost(outcome))):
            return
        self._hangs_since = self._hangs_since or now
        if now - self._hangs_since >= _SECONDS_TO_END:
            assert self._launcher is not None
            self._launcher.send_signal(self._ends.pop())
            self._hangs_since = now

    # -- signals

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
        number = signal.SIGTERM if number in self._launch.not_passed else number  # by that it ends the ranks, too
        if self._launcher is None:
            self._early.append(number)
        self._hand_on(number)

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._hand_on(number)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _interrupt(self, number: int, _: FrameType | None) -> None:
        if self._interrupted:
            self._end(signal.SIGTERM)
            return
        self._interrupted = self._changed = time.monotonic()
        self.ended_by_user = True
        said = f"mpicoll: interrupted: the ranks have {SECONDS:.0f} s to end. Ctrl-C again ends them now\n"
        os.write(2, said.encode())
        self._board.head.ctrl_c = board.WAIT if self._job.on_this_node else board.APART
        self._hand_on(self._launch.passes)

    def _end_in_time(self) -> None:
        """After Ctrl-C: let ranks go when all are over. End them at their time, or if others wait for those."""
        now, (came, over) = time.monotonic(), self._board.interrupted()
        if (came, over) != self._seen:
            self._seen, self._changed = (came, over), now
        if over == self._job.nprocs:
            self._board.head.ctrl_c = board.GO
        elif now - self._interrupted >= SECONDS or (now - self._changed > _SECONDS_IN_A_CALL and came == over > 0):
            self._hand_on(signal.SIGTERM)
            self._interrupted = inf  # it is sent once


class ExitMonitor:
    """Which rank's process has ended first, and whether others wait for it in vain.

    MPICH's launcher names a process when it ends a job, and often one that it has ended itself. So the processes are
    looked at beside it. Linux tells at once when one ends, and when the process ``launcher`` does. What else ranks do,
    and elsewhere all, is on the board, at which this looks again and again."""

    def __init__(self, of_job: board.CrashBoard, launcher: int) -> None:
        self._board, self._launcher = of_job, linux.end_of(launcher)
        self._running: dict[int, int | None] = {}
        """The ranks that have come and not ended, and what can be read when their processes end."""
        self._ended: set[int] = set()
        self._seen: object = None
        self._since = 0.0
        self.all_begun = False  # whether MPI has begun on all ranks
        self.first: list[int] = []
        """The rank whose process ended first, before its program did; several if it is not known which."""

    def close(self) -> None:
        for file in filter(None, (self._launcher, *self._running.values())):
            os.close(file)

    def wait(self, seconds: float) -> set[int]:
        """Wait until a process has ended, for so many seconds at most. Returns the files that say so."""
        poll = select.poll()
        for file in filter(None, (self._launcher, *self._running.values())):
            poll.register(file, select.POLLIN)
        return {file for file, _ in poll.poll(1000 * seconds)}

    def look(self) -> int | None:
        """Look at the processes. Returns a rank that ended without MPI, if another waits in MPI_Init for it."""
        ended = self._have_ended()
        self._ended |= ended
        states = {rank: self._board.ranks[rank].mpi for rank in self._running}
        self.all_begun = len(states) == len(self._board.ranks) and {*states.values()} == {board.BEGUN}
        others_wait = board.BEGINS in states.values()
        waited_for = [r for r in sorted(self._ended) if others_wait and self._board.ranks[r].mpi != board.BEGUN]
        early = {rank for rank in ended if not self._board.is_over(rank) or rank in waited_for}
        if early and not self.first:
            self.first = self._first_of(early)
        if self._seen != (waited_for, states):
            self._seen, self._since = (waited_for, states), time.monotonic()
        return waited_for[0] if waited_for and time.monotonic() - self._since >= _SECONDS_TO_BEGIN else None

    def kill(self) -> None:
        """Kill the ranks of this node that had not ended at the last look."""
        for rank in self._running:
            with suppress(ProcessLookupError):
                os.kill(self._board.ranks[rank].process, signal.SIGKILL)

    def _have_ended(self) -> set[int]:
        """The ranks whose processes have ended since the last look. Those that have come since then are watched."""
        for rank in {*range(len(self._board.ranks))} - self._ended - self._running.keys():
            if process := self._board.ranks[rank].process:
                self._running[rank] = linux.end_of(process)
        ended, ready = set(), self.wait(0)
        for rank, file in [*self._running.items()]:
            if file in ready or (file is None and linux.has_ended(self._board.ranks[rank].process)):
                ended.add(rank)
                del self._running[rank]
                if file is not None:
                    os.close(file)
        return ended

    def _first_of(self, early: Iterable[int]) -> list[int]:
        """Which of these ranks, which have ended between two looks, ended first.

        A launcher may see that a rank ends, and end the others, before that rank's process has gone. So one that is
        about to end may be the first, too. One that has ended otherwise than by SIGKILL or SIGTERM, by which launchers
        end processes, is the first."""
        codes: dict[int, int | None] = {}
        for rank in {*early, *(rank for rank in self._running if not self._board.is_over(rank))}:
            codes[rank] = 0
            with suppress(OSError):  # its launcher knows already that it has ended
                codes[rank] = exit_code(self._board.ranks[rank].process)
        alone = [rank for rank, code in codes.items() if code not in (None, 0, -signal.SIGKILL, -signal.SIGTERM)]
        return alone if len(alone) == 1 else sorted(rank for rank, code in codes.items() if code is not None)


def _given_to_rank_0() -> dict[str, str]:
    """What rank 0 must find in its environment to open this process's stdin itself. Empty if the launcher reads it.

    Open MPI's launcher passes stdin on without its end, so that rank 0 waits for ever (openpmix/prrte#2373), and may
    repeat parts of a long one (#2579). With MPICH's, the other ranks wait for ever: their stdin is empty instead."""
    try:
        found = os.fstat(0)
    except OSError:  # it is closed: the next file that is opened would be taken for it
        os.open(os.devnull, os.O_RDONLY)
        found = os.fstat(0)
    path = f"/proc/{os.getpid()}/fd/0"
    if stat.S_ISSOCK(found.st_mode) or not os.path.exists(path):  # no other process can open it
        return {}
    with suppress(OSError):  # it is no terminal, or not this process's own
        path = path if os.tcgetpgrp(0) == os.getpgrp() else os.devnull  # in the background, a shell reads what is typed
    return {STDIN: path}
