"""Files on demand: a process that gets SIGURG lets all processes of its job write them.

Programs without a watcher ignore SIGURG: launchers, shells and others. So the signal may be sent to all processes of a
Slurm job. Python itself would call a handler only when the main thread comes out of MPI. The handler of faulthandler is
called at once. It writes some lines to a pipe, and the watcher's thread reads them.

Only the process itself knows the folder of its files: it may have changed its directory or its environment since it
began. So it says so in a file that others find among its own.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.errors import ArgumentError, TimeoutError
from mpicoll.machine import linux
from mpicoll.supervise.messages import Files

if TYPE_CHECKING:
    import asyncio

_NAME = "mpicoll-files"


class Answer:
    """That of this process. It is empty until files were written."""

    def __init__(self) -> None:
        self._memory: int | None = None
        with suppress(OSError):  # a container may forbid it: then nobody can ask
            self._memory, _ = linux.new_file(_NAME)

    def say(self, files: Files) -> None:
        """Say this of the files that were written now, in the place of what was said before."""
        if self._memory is not None:
            text = json.dumps([files.folder, files.failure, time.time()]).encode()
            with suppress(OSError):  # no memory left: whoever asks gives up in time
                os.ftruncate(self._memory, os.pwrite(self._memory, text, 0))


def answer(process: int, asked: float) -> Files | None:
    """What a process says of the files that it has written since then; None if it has written none. Raises OSError if
    its files may not be seen, and ArgumentError if it cannot be asked."""
    can_be_asked = False
    for file in linux.files_of(process):
        with suppress(OSError, ValueError):  # it closes files meanwhile, has said nothing, or says something just now
            if linux.is_called(str(file), _NAME):
                can_be_asked = True
                folder, failure, written = json.loads(file.read_text())
                if written >= asked:
                    return Files(folder, failure)
    if not can_be_asked:
        raise _refused(f"{process}, which has made none, or has MPICOLL_CHECK=off")
    return None


SIGNAL = signal.SIGURG
_SECONDS_TO_WRITE = 10.0
_SECONDS_OF_A_SIGNAL = 0.05
"""How long a signal's lines may take to come."""


def when_asked(loop: asyncio.AbstractEventLoop, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have the loop carry out ``do`` when this process gets the signal. A handler that the program has set stays."""
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    coming: list[asyncio.TimerHandle] = []
    tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references

    def has_come() -> None:
        coming.clear()
        task = loop.create_task(do())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def comes() -> None:
        os.read(reading, 1 << 16)
        if not coming:
            coming.append(loop.call_later(_SECONDS_OF_A_SIGNAL, has_come))

    loop.add_reader(reading, comes)
    faulthandler.register(SIGNAL, writing, all_threads=False)


def ask_for_dump(pid: int) -> Path:
    """Ask the job of this process, which runs on this node, for its files. Returns the folder in which the process has
    written its own."""
    asked = time.time()
    try:
        answer(pid, asked)
        os.kill(pid, SIGNAL)
        while time.time() - asked < _SECONDS_TO_WRITE:
            if (files := answer(pid, asked)) is not None:
                if files.failure:
                    raise _refused(f"{pid}, which cannot write its files ({files.failure})")
                return Path(files.folder)
            time.sleep(0.05)
    except OSError as e:
        raise _refused(f"{pid} ({e.strerror})") from e
    raise TimeoutError(f"doctor: --dump: process {pid} wrote nothing within {_SECONDS_TO_WRITE:g} s")


def ask_slurm_job(job: str) -> None:
    """Ask all ranks of a Slurm job that runs for their files, from any machine with Slurm's commands. The job's output
    says where the files are.

    ``scancel`` reaches either what srun has started or what the job script has started. Which of them the ranks are
    depends on the launcher, so both are asked."""
    expected = "a job of Slurm's that runs, on a machine where scancel can be called"
    for options in ([], ["--full"]):
        command = ["scancel", *options, f"--signal={SIGNAL.name.removeprefix('SIG')}", job]
        try:
            said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise ArgumentError("doctor", "--dump", expected, f"{job} (there is no scancel here)") from None
        if said.returncode or said.stderr:
            problem = said.stderr.strip() or f"scancel ended with {said.returncode}"
            raise ArgumentError("doctor", "--dump", expected, f"{job} ({problem})")


def _refused(given: str) -> ArgumentError:
    return ArgumentError("doctor", "--dump", "a rank's process, which has made a Communicator", given)
