"""A test job of two ranks on this node, which shows what the MPI library does with a device's memory."""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from mpicoll.calls.choice import PATHS
from mpicoll.devices.device import Device
from mpicoll.errors import LaunchError
from mpicoll.launch import spawn
from mpicoll.probe.asking import SECONDS_OF_A_JOB, SECONDS_OF_ALL_JOBS
from mpicoll.probe.kept import NOT_TRIED
from mpicoll.probe.tries import RANKS, RIGHT, WRONG, attempt

LATE = f"{NOT_TRIED}: no time was left"
LEAST = 5.0
"""A test job is not started if fewer seconds are left for it."""


def tried(device: Device, seconds: float = SECONDS_OF_A_JOB, in_all: float = SECONDS_OF_ALL_JOBS) -> dict[str, str]:
    """By path, what is wrong with it: nothing if the MPI library takes the device's memory there.

    A path that crashes or hangs ends the test job. Another one then tries the paths after it, until all jobs together
    have taken ``in_all`` seconds."""
    found: dict[str, str] = {}
    deadline = monotonic() + in_all
    while len(found) < len(PATHS):
        left = PATHS[len(found) :]
        time_left = min(seconds, deadline - monotonic())
        if time_left < LEAST:
            return found | dict.fromkeys(left, LATE)
        try:
            notes, ended = _job(device, left, time_left)
        except (LaunchError, OSError) as e:
            return found | dict.fromkeys(left, f"{NOT_TRIED}: {e}")
        if not any(notes):
            why = ended.removeprefix(f"{NOT_TRIED}: ")
            return found | dict.fromkeys(left, f"{NOT_TRIED}: the test job does not start: {why}")
        for path in left:
            said = {of_rank.get(path) for of_rank in notes}
            if not said <= {RIGHT, WRONG}:
                found[path] = ended
                break
            found[path] = "wrong data arrives" if WRONG in said else ""
    return found


def _job(device: Device, paths: tuple[str, ...], seconds: float) -> tuple[list[Mapping[str, str]], str]:
    """What each rank has noted of the paths, and how the job ended."""
    cuda = device.name if device.kind == "cuda" else ""
    with tempfile.TemporaryDirectory(prefix="mpicoll-") as folder:
        call = spawn.pickled_call(attempt, (device.again(), cuda, paths, folder), imports_main=False)
        done = spawn.call_in_ranks(call, RANKS, seconds=seconds, quiet=True)
        return [_notes(Path(folder, str(rank))) for rank in range(RANKS)], _how(done, seconds)


def _notes(file: Path) -> dict[str, str]:
    """The last word on each path."""
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(line.split() for line in lines if len(line.split()) == 2)


def _how(done: spawn.Done, seconds: float) -> str:
    """How the job ended. A crash, or an error of the MPI's, says something of the MPI library. What else ends it may
    pass."""
    if done.code is None:
        return f"{NOT_TRIED}: the test job does not end within {seconds:.0f} s"
    if done.failure:
        error = _OF_MPI.search(done.failure)
        return error[0] if error else f"{NOT_TRIED}: {done.failure.strip().splitlines()[-1]}"
    number = done.code - 128 if done.code > 128 else done.code  # MPICH's launcher ends with the signal's own number
    if number in _CRASHES:
        return f"it ends by {_CRASHES[number]}"
    how = f"the test job ends with exit code {done.code}"
    return f"{NOT_TRIED}: {how}" if number in _ENDED else how


_OF_MPI = re.compile(r"^mpi4py\.MPI\.Exception: .*", re.MULTILINE)
_CRASHES = {s.value: s.name for s in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)}
_ENDED = (0, signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Somebody ended the job, or the system did because it needed the memory."""
