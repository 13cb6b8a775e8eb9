"""``mpicoll run --elastic``: a job that goes on when ranks are lost, and what its exit code says of that.

Open MPI's launcher ends with 0 though ranks were killed. So the coordinator, which is beside it in ``mpicoll run``,
hears from each rank at its end without which ranks it has gone on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from mpicoll.launch import board, lifecycle
from mpicoll.launch.launch_env import is_elastic
from mpicoll.units import named

# -- in mpicoll run ---------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """How the ranks of a job end, as far as they have told the coordinator."""

    ended: set[int] = field(default_factory=set)  # those that have come to their end in order
    gone: set[int] = field(default_factory=set)  # those whose connections have ended, in order or not
    without: set[int] = field(default_factory=set)  # those without which others have gone on
    code: int = 0  # the exit code with which the first rank that failed ends the job

    def report(self, nprocs: int, lost: set[int], code: int) -> int:
        """The launcher has ended with this ``code``. Say which ranks were ``lost``. Returns the job's exit code: that
        of a failed rank, or the launcher's, or 1 if nobody went on without a lost rank."""
        if self.code:
            return self.code  # after MPI_Abort Open MPI's launcher may end with another code, even with 0
        if code or not lost:
            return code  # what ended the job has been said already
        were, them = ("were", "them") if len(lost) > 1 else ("was", "it")
        missed, went_on = lost - self.without, f"; the others went on to the end without {them}"
        if missed:
            went_on = f", and no rank went on without {named(sorted(missed))}"
        these = f"mpicoll: {len(lost)} of {nprocs} ranks {were} lost ({named(sorted(lost))})"
        print(these + went_on, file=sys.stderr)
        return 1 if missed else 0


# -- in a rank --------------------------------------------------------------------------------------------------------


without: set[int] = set()  # ranks of MPI's world that this rank has gone on without
_fails = False  # whether this rank ends the job
others_are_lost = False  # whether ranks were lost, as the coordinator knows at the end


def go_on_with(ranks: Sequence[int], size: int, me: int) -> None:
    """Note that these ranks of MPI's world are the job from now on, also in the variables that programs read."""
    without.update({*range(size)}.difference(ranks))
    if len(ranks) < size and "RANK" in os.environ:
        os.environ.update(RANK=str(ranks.index(me)), WORLD_SIZE=str(len(ranks)))


def begin() -> None:
    """The program of this rank begins."""
    lifecycle.set_exit(_end_as_lost)
    lifecycle.add(lifecycle.Hook.LEAVE_JOB, _end_mpi)
    lifecycle.add(lifecycle.Hook.LEAVE_ELASTIC_JOB, lambda: lifecycle.set_exit(lifecycle.exit_now))


def _end_as_lost(status: int) -> NoReturn:
    """What ``os._exit`` does in a rank: if it failed, Open MPI tells others of its end only if a signal causes it."""
    if status:
        os.kill(os.getpid(), signal.SIGKILL)
    lifecycle.exit_now(status)


def fails(status: int) -> None:
    """Note that this rank ends the job with this exit code."""
    global _fails
    if is_elastic():
        _fails = True
        board.head.status = status & 0xFF
        lifecycle.run(lifecycle.Event.RANK_FAILS, status)


def _end_mpi() -> None:
    """All ranks that are left have come to their ends. MPI_Finalize may wait for ever for a rank that was lost. Then
    this ends the process without it, which Open MPI lets a rank do."""
    if _fails or not lifecycle.lives():
        return
    if not (others_are_lost or without):
        sys.modules["mpi4py.MPI"].Finalize()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    lifecycle.exit_now(0)
