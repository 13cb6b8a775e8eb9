"""A limit for what makes a communicator. The watchers cannot help there, because they meet through the first one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from mpicoll.launch import lifecycle
from mpicoll.launch.failure import is_first
from mpicoll.launch.launch_env import launched_rank
from mpicoll.supervise import ending, report
from mpicoll.supervise.sites import DaemonThread, whereabouts
from mpicoll.supervise.watched import SECONDS_TO_HEAR


@contextmanager
def limited(what: str, timeout: float) -> Iterator[None]:
    """End the job if ``what`` takes longer than a call may: ``timeout`` seconds, which may be infinite."""
    if timeout == inf:
        yield
        return
    seconds = timeout + SECONDS_TO_HEAR
    over = threading.Event()
    DaemonThread(_end_late, "mpicoll limit", [over, what, seconds, threading.get_ident()]).start()
    try:
        yield
    finally:
        over.set()


def _end_late(over: threading.Event, what: str, seconds: float, thread: int) -> None:
    if over.wait(min(seconds, threading.TIMEOUT_MAX)):
        return
    waits = f"rank {launched_rank() or 0} has waited for {seconds:g} s in {what}"
    why = f"{waits}, at {whereabouts(thread)}: its ranks have not all come to this call. The job ends"
    if is_first("limit"):
        report.show(f"mpicoll: {why}")
    lifecycle.run(lifecycle.Event.JOB_FAILS, why, True)
    ending.end([])
