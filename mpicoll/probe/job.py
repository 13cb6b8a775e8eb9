"""A test job of two ranks on this node, which shows what the MPI library does with a device's memory."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mpicoll.calls.choice import PATHS
from mpicoll.devices.device import Device
from mpicoll.errors import LaunchError
from mpicoll.launch import launcher, spawned
from mpicoll.probe.asking import SECONDS_OF_A_JOB
from mpicoll.probe.tries import RANKS, RIGHT, WRONG, attempt

__all__ = ["FAILS", "tried"]

FAILS = "the test job does not start"


def tried(device: Device, seconds: float = SECONDS_OF_A_JOB) -> dict[str, str]:
    """By path, what is wrong with it: nothing if the MPI library takes the device's memory there.

    A path that crashes or hangs ends the test job. Another one then tries the paths after it."""
    found: dict[str, str] = {}
    while len(found) < len(PATHS):
        left = PATHS[len(found) :]
        try:
            notes, ended = _job(device, left, seconds)
        except (LaunchError, OSError) as e:
            return dict.fromkeys(PATHS, f"{FAILS}: {e}")
        if not any(notes):
            return dict.fromkeys(PATHS, f"{FAILS}: {ended}")
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
        call = spawned.pickled_call(attempt, (device.again(), cuda, paths, folder), imports_main=False)
        done = launcher.job(call, RANKS, seconds=seconds, quiet=True)
        return [_notes(Path(folder, str(rank))) for rank in range(RANKS)], _how(done, seconds)


def _notes(file: Path) -> dict[str, str]:
    """The last word on each path."""
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(line.split() for line in lines if len(line.split()) == 2)


def _how(done: launcher.Done, seconds: float) -> str:
    if done.code is None:
        return f"it does not end within {seconds:g} s"
    if done.failure:
        return done.failure.strip().splitlines()[-1]
    number = done.code - 128 if done.code > 128 else done.code  # MPICH's launcher ends with the signal's own number
    return f"it ends by {_CRASHES[number]}" if number in _CRASHES else f"it ends with exit code {done.code}"


_CRASHES = {s.value: s.name for s in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGKILL)}
