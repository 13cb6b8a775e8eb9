"""Files on demand: a process that gets SIGURG lets all processes of its job write them.

Programs without a watcher ignore SIGURG: launchers, shells and others. So the signal may be sent to all processes of a
Slurm job. Python itself would call a handler only when the main thread comes out of MPI. The handler of faulthandler is
called at once. It writes some lines to a pipe, and the watcher's thread reads them.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from mpicoll.errors import ArgumentError, TimeoutError
from mpicoll.guard.files.answer import answers

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
    process = Path("/proc", str(pid))
    asked = time.time()
    try:
        if answers(process) is None:
            raise _refused(f"{pid}, which has made none, or has MPICOLL_CHECK=off")
        os.kill(pid, SIGNAL)
        while time.time() - asked < _SECONDS_TO_WRITE:
            answer = next((files for files, written in answers(process) or () if written >= asked), None)
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
