"""The end of a job in which a rank cannot go on: every process ends within seconds, wherever its threads are."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
from contextlib import suppress

from mpicoll.guard.watch.meeting import Message
from mpicoll.launch.failure import end_job

__all__ = ["end", "kill", "prepare_to_end", "this_process"]

_SECONDS = 5
"""What a launcher has for ending the processes itself."""


def this_process() -> Message:
    """How processes of the same node find this one: its number, and in which node's and container's count it is so."""
    spaces = "/proc/self/ns/pid"
    space = os.stat(spaces).st_ino if os.path.exists(spaces) else 0
    return {"pid": os.getpid(), "host": socket.gethostname(), "space": space}


def prepare_to_end(silent: list[Message]) -> None:
    """Let this process end in some seconds, if its launcher does not end it before. End those that do not answer."""
    # This timer needs neither Python's lock nor a thread of Python's, and it ends the process by _exit(1).
    faulthandler.dump_traceback_later(_SECONDS, exit=True, file=os.open(os.devnull, os.O_WRONLY))
    kill(silent)


def kill(silent: list[Message]) -> None:
    """End these processes, as far as they are on this node: one that is stopped does not see a launcher's signal."""
    here = this_process()
    for process in silent:
        if (process["host"], process["space"]) == (here["host"], here["space"]) and process["pid"] != here["pid"]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process["pid"], signal.SIGKILL)


def end(silent: list[Message]) -> None:
    """End the job with the exit code 1. Does not return."""
    prepare_to_end(silent)
    end_job(1)
    os._exit(1)
