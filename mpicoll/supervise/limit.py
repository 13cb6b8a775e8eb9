"""A limit for what makes a communicator. The watchers cannot help there, because they meet through the first one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf

from mpicoll.launch import lifecycle
from mpicoll.launch.failure import is_first
from mpicoll.launch.launch_env import launched_rank
from mpicoll.supervise import ending, report
from mpicoll.supervise.sites import DaemonThread, whereabouts
from mpicoll.supervise.watched import LOOK, SECONDS_TO_HEAR


@dataclass(eq=False)
class _Wait:
    what: str
    limit: float
    thread: int = field(default_factory=threading.get_ident)
    seconds: float = 0.0
    """How long it has lasted. The time in which the process is stopped does not count."""


_under_way: list[_Wait] = []
_begun = threading.Event()


@contextmanager
def limited(what: str, timeout: float) -> Iterator[None]:
    """End the job if ``what`` takes longer than a call may: ``timeout`` seconds, which may be infinite."""
    if timeout == inf:
        yield
        return
    _start()
    wait = _Wait(what, timeout + SECONDS_TO_HEAR)
    _under_way.append(wait)
    _begun.set()
    try:
        yield
    finally:
        _under_way.remove(wait)


@lru_cache(maxsize=1)  # once in a process
def _start() -> None:
    DaemonThread(_look_on, "mpicoll limit").start()


def _look_on() -> None:
    while _begun.wait():
        time.sleep(LOOK)
        for wait in [*_under_way]:
            wait.seconds += LOOK
            if wait.seconds >= wait.limit:
                _end(wait)
        _begun.clear()
        if _under_way:
            _begun.set()


def _end(wait: _Wait) -> None:
    waits = f"rank {launched_rank() or 0} has waited for {wait.seconds:g} s in {wait.what}"
    why = f"{waits}, at {whereabouts(wait.thread)}: its ranks have not all come to this call. The job ends"
    if is_first("limit"):
        report.show(f"mpicoll: {why}")
    lifecycle.run(lifecycle.Event.JOB_FAILS, why, True)
    ending.end([])
