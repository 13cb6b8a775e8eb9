"""Writes what a process has done last to two files: JSON for people, and a pickle for ``torchfrtrace``."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable

from mpicoll.guard.files.answer import Answer
from mpicoll.guard.files.flight import recording
from mpicoll.guard.files.places import checked_folder, default_folder, remove_old
from mpicoll.guard.files.snapshot import snapshot
from mpicoll.guard.watch.protocol import Files
from mpicoll.guard.watch.watched import Watched
from mpicoll.machine.system import write_whole


class Dump:
    """Writes the files of this process, which is ``rank`` of the job's world. ``given`` is the folder, or empty."""

    def __init__(self, rank: int, given: str, job: str, communicators: Callable[[], Iterable[Watched]]) -> None:
        self._rank, self._communicators, self._given = rank, communicators, given
        self._folder = checked_folder(given) if given else default_folder(job)
        self._answer = Answer()

    def write(self, why: str, since: dict[str, int]) -> Files:
        """Write the files, and say in which folder they are, or why they could not be written. ``since`` is the first
        call of each communicator that counts for torchfrtrace."""
        files = Files(str(self._folder), "")
        try:
            known = snapshot(self._rank, why, self._communicators())
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_whole(self._folder / f"torch_rank_{self._rank}", pickle.dumps(recording(known, since)))
            write_whole(self._folder / f"rank{self._rank}.json", json.dumps(known, indent=1))
        except Exception as e:  # whatever it is, it must not hide what the files are for
            files = Files("", f"{self._folder}: {type(e).__name__}: {e}")
        if not self._given:
            remove_old(self._folder)
        self._answer.say(files)
        return files
