"""A process of its own for a question whose answer may crash the process, or never come.

``python -m mpicoll.probe.child QUESTION FILE PARENT`` is that process. QUESTION names a generator, as
``module:function``. Its arguments come from the process PARENT through the connection FILE, and what it yields goes
there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

from mpicoll.errors import LaunchError
from mpicoll.machine import linux

SECONDS = 120.0  # how long an answer may take. To import torch from a busy file system takes many seconds
SECONDS_OF_A_JOB = 60.0  # how long a test job may take, which also imports torch
SECONDS_OF_ALL_JOBS = 150.0
"""How long all test jobs together may take. Other ranks wait for the rank that starts them."""
NOT_TRIED = "could not be tried"
"""What an answer begins with that says nothing of the MPI library. It is not kept: the next process may get another."""
GRACE = 30.0  # how long a process that has answered may take to end: it may have to end MPI
_STDERR = 2


class Child:
    """The process of a question, in a ``with`` statement, at whose end it ends. It has the files of this process, and
    what it prints goes to stderr. With ``quiet``, it has none, and the last line that it prints is a part of the reason
    why there is no answer."""

    def __init__(self, question: str, *given: object, environment: Mapping[str, str], quiet: bool = False) -> None:
        self._here, there = multiprocessing.Pipe()
        self._printed = TemporaryFile("w+") if quiet else None  # noqa: SIM115 (it is closed at the end)
        os.set_inheritable(there.fileno(), True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mpicoll.probe.child", question, str(there.fileno()), str(os.getpid())],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._printed or _STDERR,
            stderr=self._printed,
            close_fds=quiet,
            pass_fds=[there.fileno()] if quiet else (),
        )
        there.close()
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended already, as ``answer`` will see
            self._here.send(given)

    def __enter__(self) -> Child:
        return self

    def answer(self, seconds: float) -> Any:
        """What the generator yields next. Raises LaunchError: how the process has ended instead, or that time is up."""
        try:
            if self._here.poll(seconds):
                return self._here.recv()
        except (EOFError, ConnectionResetError):
            self._wait()
            raise LaunchError(self._how()) from None
        self._process.kill()
        raise LaunchError(f"no answer within {seconds:g} s")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._here.close()
        self._wait()
        if self._printed is not None:
            self._printed.close()

    def _wait(self) -> None:
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _how(self) -> str:
        code = self._process.returncode
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        if self._printed is None:
            return f"ended with exit code {code}"
        self._printed.seek(0)
        return f"exit code {code}: {(self._printed.read().strip().splitlines() or [''])[-1]}"


def main(question: str, file: int, parent: int) -> None:
    """Answer the question, and end with the process ``parent``, even where MPI waits."""
    linux.end_with(parent, signal.SIGKILL)
    os.set_inheritable(file, False)  # the connection ends with this process, even if a child of it goes on
    module, _, function = question.partition(":")
    with Connection(file) as asker:
        for answer in getattr(import_module(module), function)(*asker.recv()):
            asker.send(answer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
