"""Where files go, as MPICOLL_DUMP and MPICOLL_TRACE say. What cannot be written is refused before a job has begun."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mpicoll.errors import ArgumentError

_DEFAULT = "mpicoll-calls-"
"""How the names of folders begin that nobody has named."""

_KEPT = 20
_SECONDS_TO_KEEP = 3600.0
"""Folders of jobs that nobody has named: so many are kept, and all that are not so old."""


def default_folder(job: str) -> Path:
    """The same for all processes of the job on one node."""
    return Path(tempfile.gettempdir(), _DEFAULT + job)


def remove_old(folder: Path) -> None:
    """Remove the oldest of this user's folders that lie beside this one, which nobody has named. Others do it, too."""
    found = []
    with suppress(OSError), os.scandir(folder.parent) as entries:
        for entry in entries:
            with suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                named = re.fullmatch(_DEFAULT + "[0-9a-f]{8}", entry.name)
                if named and entry.is_dir(follow_symlinks=False) and stat.st_uid == os.getuid():
                    found.append((stat.st_mtime, entry.path))
    for written, path in sorted(found, reverse=True)[_KEPT:]:
        if time.time() - written > _SECONDS_TO_KEEP:
            shutil.rmtree(path, ignore_errors=True)


def checked_folder(given: str) -> Path:
    """The folder, made if it is not there. Raises ArgumentError unless files can be written to it."""
    folder = Path(given).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as e:
        raise ArgumentError("mpicoll", "MPICOLL_DUMP", "a folder that can be written", f"{given!r} ({e})") from None
    return folder


def checked_trace(given: str, first: int) -> Path:
    """The file, which is not made yet. Raises ArgumentError unless it can be written.

    ``first`` is the first of the ranks that it is about. Ranks that share no communicator with rank 0 have a file of
    their own."""
    file = Path(given).absolute()
    if first:
        file = file.with_stem(f"{file.stem}-from-rank-{first}")
    existed = file.exists()
    try:
        file.open("ab").close()
    except OSError as e:
        raise ArgumentError("mpicoll", "MPICOLL_TRACE", "a file that can be written", f"{given!r} ({e})") from None
    if not existed:
        file.unlink(missing_ok=True)
    return file
