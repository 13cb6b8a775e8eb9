"""What test jobs have shown, kept in the user's cache: one file for each MPI library, driver and device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from mpicoll.calls.choice import PATHS
from mpicoll.machine.folders import user_folder
from mpicoll.machine.system import write_whole

NOT_TRIED = "could not be tried"
"""What an answer begins with that says nothing of the MPI library. It is not kept: the next process may get another."""


@dataclass(frozen=True)
class Key:
    """What an answer holds for: the MPI library and its version, the version of the UCX in use, the device with its
    driver, and the settings that tell the MPI library how data goes."""

    mpi: str
    ucx: str
    device: str
    settings: Mapping[str, str]

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def name(self) -> str:
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def file(key: Key) -> Path | None:
    """Where the answer is kept; None for a user without a home. Whoever deletes it makes mpicoll try again."""
    cache = user_folder("XDG_CACHE_HOME")
    return cache and cache / "mpicoll" / "device-memory" / f"{key.name}.json"


def kept(key: Key) -> dict[str, str] | None:
    """By path, what is wrong with it, as far as it was kept. None if nothing was, or if the file is broken."""
    source = file(key)
    if source is None:
        return None
    try:
        found = json.loads(source.read_text())
        paths = found["paths"]
        ours = found["key"] == asdict(key) and set(paths) <= set(PATHS)
        whole = all(isinstance(why, str) for why in paths.values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return paths if ours and whole else None


def keep(key: Key, paths: Mapping[str, str]) -> None:
    """Keep an answer, unless there is no folder that can be written to: then other processes find it out again."""
    target = file(key)
    if target is None:
        return
    with suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, json.dumps({"key": asdict(key), "paths": dict(paths)}, indent=1) + "\n")
