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
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.errors import ArgumentError, TimeoutError
from mpicoll.machine import linux
from mpicoll.supervise.messages import Files

if TYPE_CHECKING:
    import asyncio

Written = tuple[Files, float]
"""The files, and when they were written, in seconds since 1970."""

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


def answers(process: int) -> list[Written] | None:
    """What a process says; None if it cannot be asked. Raises OSError if its files may not be seen."""
    texts = []
    for file in linux.files_of(process):
        with suppress(OSError):  # it closes files meanwhile
            if linux.is_called(str(file), _NAME):
                texts.append(file.read_text())
    return [*_parsed(texts)] if texts else None


def _parsed(texts: Iterable[str]) -> Iterator[Written]:
    for text in texts:
        with suppress(ValueError):  # nothing was said yet, or it is being written
            folder, failure, written = json.loads(text)
            yield Files(folder, failure), written


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
        if answers(pid) is None:
            raise _refused(f"{pid}, which has made none, or has MPICOLL_CHECK=off")
        os.kill(pid, SIGNAL)
        while time.time() - asked < _SECONDS_TO_WRITE:
            answer = next((files for files, written in answers(pid) or () if written >= asked), None)
            if answer is not None and answer.failure:
                raise _refused(f"{pid}, which cannot write its files ({answer.failure})")
            if answer is not None:
                return Path(answer.folder)
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
