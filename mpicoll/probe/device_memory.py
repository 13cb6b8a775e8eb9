"""What the MPI library of this process does with the memory of a device. Test jobs of two ranks on this node show it,
and the user's cache keeps it: one file for each MPI library, driver and device."""

from __future__ import annotations

import json
import re
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

from mpicoll.calls.choose import PATHS
from mpicoll.devices.device import Device
from mpicoll.errors import LaunchError
from mpicoll.jobs import launcher, spawn
from mpicoll.machine.mpi_library import library, ucx_version
from mpicoll.machine.system import cache_folder, write_whole
from mpicoll.machine.vendors import SETTINGS
from mpicoll.probe.child import NOT_TRIED, SECONDS_OF_A_JOB, SECONDS_OF_ALL_JOBS
from mpicoll.probe.tries import RANKS, RIGHT, attempt

LEAST = 5.0  # a test job is not started if fewer seconds are left for it

Key = Mapping[str, Any]
"""What an answer holds for: the MPI library, the UCX in use, the device with its driver, and MPI's path settings."""

_known: dict[str, Mapping[str, str]] = {}  # the answers of this process, by the names of their keys


def probed(device: Device, tries: bool = True) -> Mapping[str, str]:
    """By path, what is wrong with it: nothing if the MPI library takes the device's memory there.

    A library that says no is believed. To find out the rest, this starts jobs of two ranks, and waits for them. What
    could not be tried counts as not working in this process, and the next one tries again. Without ``tries``, nothing
    is tried, and what nobody has tried counts as not working."""
    if not device.known_to_mpi():
        return dict.fromkeys(PATHS, "the MPI library says that it takes no such memory")
    key = key_of(device)
    found = _known.get(_name(key)) or cached(key) or {}
    if tries and len(found) < len(PATHS):
        now = tried(device)
        shown = {**found, **{path: why for path, why in now.items() if not why.startswith(NOT_TRIED)}}
        if shown:
            keep(key, shown)
        found = _known[_name(key)] = {**now, **shown}
    return {**dict.fromkeys(PATHS, "nobody has tried"), **found}


# -- the user's cache ------------------------------------------------------------------------------------------------


def key_of(device: Device) -> Key:
    """What an answer on this device holds for."""
    settings = {k: v for k, v in sorted(launcher.of_no_rank().items()) if SETTINGS.fullmatch(k)}
    return {"mpi": library(), "ucx": ucx_version(), "device": device.model, "settings": settings}


def _name(key: Key) -> str:
    return sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def file_of(key: Key) -> Path | None:
    """Where the answer is kept; None for a user without a home. Whoever deletes it makes mpicoll try again."""
    cache = cache_folder()
    return cache and cache / "mpicoll" / "device-memory" / f"{_name(key)}.json"


def cached(key: Key) -> dict[str, str] | None:
    """By path, what is wrong with it, as far as it was kept. None if nothing was, or if the file is broken."""
    if (source := file_of(key)) is not None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(source.read_text())
            return {path: str(kept["paths"][path]) for path in kept["paths"]} if kept["key"] == key else None
    return None


def keep(key: Key, paths: Mapping[str, str]) -> None:
    """Keep an answer, unless there is no folder that can be written to: then other processes find it out again."""
    if (target := file_of(key)) is not None:
        with suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, json.dumps({"key": key, "paths": paths}, indent=1) + "\n")


# -- the test jobs ---------------------------------------------------------------------------------------------------


def tried(device: Device, seconds: float = SECONDS_OF_A_JOB, in_all: float = SECONDS_OF_ALL_JOBS) -> dict[str, str]:
    """By path, what is wrong with it. A path that crashes or hangs ends the test job. Another one then tries the paths
    after it, until all jobs together have taken ``in_all`` seconds."""
    found: dict[str, str] = {}
    deadline = monotonic() + in_all
    while left := PATHS[len(found) :]:
        time_left = min(seconds, deadline - monotonic())
        if time_left < LEAST:
            return found | dict.fromkeys(left, f"{NOT_TRIED}: no time was left")
        try:
            notes, ended = _job(device, left, time_left)
        except (LaunchError, OSError) as e:
            return found | dict.fromkeys(left, f"{NOT_TRIED}: {e}")
        if not any(notes):
            why = ended.removeprefix(f"{NOT_TRIED}: ")
            return found | dict.fromkeys(left, f"{NOT_TRIED}: the test job does not start: {why}")
        complete = max(0, min(map(len, notes)) - 1)
        for path, *said in zip(left, *(words[1:] for words in notes), strict=False):
            found[path] = "" if {*said} == {RIGHT} else "wrong data arrives"
        if complete < len(left):
            found[left[complete]] = ended
    return found


def _job(device: Device, paths: tuple[str, ...], seconds: float) -> tuple[list[list[str]], str]:
    """The words that each rank has noted, and how the job ended."""
    cuda = device.name if device.name.startswith("cuda:") else ""
    with tempfile.TemporaryDirectory(prefix="mpicoll-") as folder:
        files = [Path(folder, str(rank)) for rank in range(RANKS)]
        call = spawn.pickled_call(attempt, (device.again(), cuda, paths, folder), imports_main=False)
        ended = _how(*spawn.call_in_ranks(call, RANKS, seconds=seconds, quiet=True), seconds)
        return [file.read_text().split() if file.exists() else [] for file in files], ended


def _how(code: int | None, failure: str, seconds: float) -> str:
    """How the job ended. Only a crash, or an error of the MPI's, says something of the MPI library."""
    if code is None:
        return f"{NOT_TRIED}: the test job does not end within {seconds:.0f} s"
    if failure:
        error = _OF_MPI.search(failure)
        return error[0] if error else f"{NOT_TRIED}: {failure.strip().splitlines()[-1]}"
    number = code - 128 if code > 128 else code  # MPICH's launcher ends with the signal's own number
    if number in _CRASHES:
        return f"it ends by {_CRASHES[number]}"
    how = f"the test job ends with exit code {code}"
    return f"{NOT_TRIED}: {how}" if number in _ENDED else how


_OF_MPI = re.compile(r"^mpi4py\.MPI\.Exception: .*", re.MULTILINE)
_CRASHES = {s.value: s.name for s in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE)}
_ENDED = (0, signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Somebody ended the job, or the system did because it needed the memory."""
