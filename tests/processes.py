"""Running a command that may hang, with all that it starts, until a deadline. Needs Linux's /proc and nothing else.

Launchers put ranks in sessions of their own, and ranks may outlive them: what belongs to a job is told by a
variable in its environment."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_OF_PYTHON = re.compile(r"PYTHON(?!PATH$|HOME$|PYCACHEPREFIX$)\w+")
"""How Python behaves, such as PYTHONUNBUFFERED and PYTHONOPTIMIZE."""


def plain_environment() -> dict[str, str]:
    """This process's environment, without what must not decide whether a test passes."""
    return {name: value for name, value in os.environ.items() if not _OF_PYTHON.fullmatch(name)}


def memory() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Job:
    """A command and all that it starts."""

    process: subprocess.Popen[str]
    mark: str
    began: float = field(default_factory=time.monotonic)
    _seen: set[int] = field(default_factory=set)

    def running(self) -> list[int]:
        """The processes of this job. A zombie, which only waits for its parent to take note, is none."""
        mark = self.mark.encode()
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if mark in Path("/proc", process, "environ").read_bytes().split(b"\0"):
                    found.append(int(process))
        self._seen.update(found)
        return found

    def kill(self) -> None:
        while left := self.running():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()
        # What Open MPI's launcher leaves if it was killed. A later one with the same number would not start.
        for pid in {self.process.pid, *self._seen}:
            shutil.rmtree(Path(tempfile.gettempdir(), f"ompi.{pid}"), ignore_errors=True)

    def seconds(self) -> float:
        return time.monotonic() - self.began


def _hear_the_terminal() -> None:
    # A shell has what it starts in the background ignore these, and children inherit that.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def job(argv: list[str], output: Path, env: dict[str, str], cwd: Path) -> Iterator[Job]:
    """Start ``argv`` in a session of its own with stdout and stderr in ``output``; leaving kills what is left of it."""
    mark = f"MPICOLL_JOB_{uuid.uuid4().hex}=1"
    with open(output, "w") as file:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True, cwd=cwd, start_new_session=True,
            preexec_fn=_hear_the_terminal,
            env={**env, mark.partition("=")[0]: "1"},
        )  # fmt: skip
    started = Job(process, mark)
    try:
        yield started
    finally:
        started.kill()
