"""Room for the judge's connections: a process may open so many files, and the judge takes one for each rank."""

from __future__ import annotations

import os
import resource

from mpicoll.errors import LaunchError

_OTHERS = 8
"""The files of the watcher's own, and those that are written when a job ends."""


def make_room(rank: int, ranks: int) -> None:
    """Let this process, which is ``rank`` of the job's world, open as many files as a judge of so many ``ranks`` needs.
    Raises LaunchError if it may not."""
    soft, hard = (_counted(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    needed = _open(soft) + ranks + _OTHERS
    if needed <= soft:
        return
    if needed > hard:
        told = f"rank {rank} may open {hard} files, and needs {needed}: one for each of {ranks} ranks, and what it has"
        raise LaunchError(f"{told} open", f"Raise the limit (ulimit -Hn {needed}; in systemd, LimitNOFILE)")
    # This is not done without need: select.select knows no file beyond the first 1,024.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def _counted(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _open(limit: float) -> float:
    """How many files this process has open, of so many."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # there is none left with which to look
        return limit
