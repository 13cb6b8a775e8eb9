"""The end of a job in which a rank cannot go on: every process ends within seconds, wherever its threads are."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf

from mpicoll.launch import board, lifecycle
from mpicoll.launch.failure import end_job, is_first
from mpicoll.launch.launch_env import launched_rank
from mpicoll.machine import linux
from mpicoll.machine.system import exit_code
from mpicoll.supervise import report
from mpicoll.supervise.messages import Process
from mpicoll.supervise.sites import DaemonThread, whereabouts
from mpicoll.supervise.watched import SECONDS_TO_HEAR

_ON_DEMAND = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals by which people and launchers end processes: whoever sends them knows."""
_MEMORY = "often the system was out of memory, see dmesg"
_SECONDS = 5  # what a launcher has for ending the processes itself


def this_process() -> Process:
    """How others find this one."""
    return Process(os.getpid(), socket.gethostname(), linux.process_space())


def is_near(process: Process) -> bool:
    """Whether this process knows the other one by the same number."""
    here = this_process()
    return (process.host, process.space) == (here.host, here.space)


def exit_reason(process: Process) -> str:
    """How this process has ended, if that is known. Empty if it goes on, or if its end was in order or wanted."""
    if not is_near(process):
        return ""  # the network may have lost the connection
    try:
        code = exit_code(process.pid)
    except OSError:  # its launcher knows already that it has ended
        return f"its process has ended (if it was killed: {_MEMORY})"
    if code == -signal.SIGKILL:
        return f"its process was killed (SIGKILL): {_MEMORY}"
    if code is not None and code < 0:
        known = -code in {*signal.Signals}
        name = f"{signal.Signals(-code).name} ({signal.strsignal(-code)})" if known else f"signal {-code}"
        return "" if -code in _ON_DEMAND else f"its process was ended by {name}"
    return f"its process has ended with exit code {code}" if code else ""


is_known = False  # whether this process knows that the job ends, and somebody has said why


def prepare_to_end(silent: list[Process]) -> None:
    """Let this process end in some seconds, if its launcher does not end it before. End those that do not answer."""
    global is_known
    is_known = True
    board.head.told = 1  # before a launcher ends all, because it sees the end of one
    # This timer needs neither Python's lock nor a thread of Python's, and it ends the process by _exit(1).
    faulthandler.dump_traceback_later(_SECONDS, exit=True, file=os.open(os.devnull, os.O_WRONLY))
    kill(silent)


def kill(silent: list[Process]) -> None:
    """End these processes, as far as they are on this node: one that is stopped does not see a launcher's signal."""
    for process in silent:
        if is_near(process) and process.pid != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)


def end(silent: list[Process]) -> None:
    """End the job with the exit code 1. Does not return."""
    prepare_to_end(silent)
    end_job(1)
    os._exit(1)


@contextmanager
def limited(what: str, timeout: float) -> Iterator[None]:
    """End the job if ``what`` takes longer than a call may: ``timeout`` seconds, which may be infinite. The watchers do
    not help where a communicator is made, because they meet through the first one."""
    over, thread, seconds = threading.Event(), threading.get_ident(), timeout + SECONDS_TO_HEAR

    def end_late() -> None:
        if over.wait(min(seconds, threading.TIMEOUT_MAX)):
            return
        waits = f"rank {launched_rank() or 0} has waited for {seconds:g} s in {what}"
        why = f"{waits}, at {whereabouts(thread)}: its ranks have not all come to this call. The job ends"
        if is_first("limit"):
            report.show(f"mpicoll: {why}")
        lifecycle.run(lifecycle.Event.JOB_FAILS, why, True)
        end([])

    if timeout < inf:
        DaemonThread(end_late, "mpicoll limit").start()
    try:
        yield
    finally:
        over.set()
