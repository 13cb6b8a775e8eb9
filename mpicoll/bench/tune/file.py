"""A table's file, to which several tuners may add at once."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpicoll.bench.tune.record import Record, read
from mpicoll.calls.measured import SCHEMA, SETTING, contents, given_sections, section, sections
from mpicoll.machine.system import write_whole

__all__ = ["TableFile", "text_of"]


class TableFile:
    """The table in ``path``. It need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> list[Record]:
        """The sections that have times. Raises ArgumentError if the file is not a table."""
        found = [read(str(self.path), i, given) for i, given in enumerate(self._given())]
        return [record for record in found if record is not None]

    def prepare(self) -> None:
        """Raise OSError if nothing can be added."""
        with self._locked():
            pass

    def add(self, mine: Record) -> Record:
        """Add a record, together with what the file has of its setting already. Returns both. All other sections stay
        as they are. A job that reads the file meanwhile finds the old table or the new one, and no other tuner's
        section is lost."""
        with self._locked():
            given = self._given()
            at = len(given)
            for i, each in enumerate(given):
                if section(str(self.path), i, each).setting == mine.setting:
                    at, there = i, read(str(self.path), i, each)
                    if there is not None:
                        mine.join(there)
            given[at : at + 1] = [mine.as_dict()]
            text = text_of(given)
            sections(text, str(self.path))  # raises the error that a job would say
            write_whole(self.path, text)
        return mine

    def _given(self) -> list[Any]:
        try:
            text = contents(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return given_sections(text, str(self.path))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """While no other tuner changes it. The lock is a file of its own, because the table is replaced as a whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        path = self.path.resolve()  # who has a symbolic link to the table shares its lock
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def text_of(given: Sequence[Any]) -> str:
    """A table for people to read: a line for each collective's rows, and for each launch's times of a size."""
    return json.dumps({"schema": SCHEMA})[:-1] + ', "sections": [\n' + ",\n".join(map(_section, given)) + "\n]}\n"


def _section(given: dict[str, Any]) -> str:
    setting = {key: given[key] for key in SETTING}
    parts = [json.dumps(setting)[:-1]]
    for key in ("algorithms", "native", "exchange"):
        lines = [f"  {json.dumps(name)}: {json.dumps(of)}" for name, of in given[key].items()]
        parts.append(f' "{key}": {{' + ",".join(f"\n{line}" for line in lines) + "}")
    parts += [f' "{key}": {json.dumps(given[key])}' for key in ("environment", "model") if key in given]
    for key in ("launches", "times"):
        if key in given:
            parts.append(f' "{key}": [' + ",".join(f"\n  {json.dumps(each)}" for each in given[key]) + "]")
    return ",\n".join(parts) + "}"
