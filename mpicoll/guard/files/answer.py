"""What a process says of the files that it has written last, for those who ask from another process.

Only the process itself knows its folder: it may have changed its directory or its environment since it began. So it
says so in a piece of memory with a name, which others find among its open files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from mpicoll.guard.watch.protocol import Files

Written = tuple[Files, float]
"""The files, and when they were written, in seconds since 1970."""

_NAME = "mpicoll-files"


class Answer:
    """That of this process. It is empty until files were written."""

    def __init__(self) -> None:
        self._memory: int | None = None
        with suppress(OSError):  # a container may forbid it: then nobody can ask
            self._memory = os.memfd_create(_NAME)

    def say(self, files: Files) -> None:
        """Say this of the files that were written now, in the place of what was said before."""
        if self._memory is not None:
            text = json.dumps([files.folder, files.failure, time.time()]).encode()
            with suppress(OSError):  # no memory left: whoever asks gives up in time
                os.ftruncate(self._memory, os.pwrite(self._memory, text, 0))


def answers(process: Path) -> list[Written] | None:
    """What a process says, as in ``/proc/17``; None if it cannot be asked. Raises OSError if its open files may not be
    seen."""
    texts = []
    for file in (process / "fd").iterdir():
        with suppress(OSError):  # it closes files meanwhile
            if os.readlink(file).startswith(f"/memfd:{_NAME}"):
                texts.append(file.read_text())
    return [*_parsed(texts)] if texts else None


def _parsed(texts: Iterable[str]) -> Iterator[Written]:
    for text in texts:
        with suppress(ValueError):  # nothing was said yet, or it is being written
            folder, failure, written = json.loads(text)
            yield Files(folder, failure), written
