"""Which tables of measurements there are, and which of their sections holds.

The first place that has a section for a number of ranks decides for it, with that one section: nothing is merged. The
places are, in this order: the file that MPICOLL_TABLE names, the user's, the environment's, the site's, and the table
that is part of mpicoll. A table or a section that must not be used is refused, and the ranks use what they would use
without any table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from mpicoll.calls.measured import Rows, Section, Setting, contents, sections
from mpicoll.errors import ArgumentError

__all__ = ["OFF", "SHIPPED", "Held", "Place", "Table", "held", "places", "user_file"]

OFF = "off"
"""MPICOLL_TABLE has it where no table is to be used."""
SHIPPED = Path(__file__).with_name("select.json")
_FILE = Path("mpicoll", "table.json")


@dataclass(frozen=True)
class Place:
    """A file where a table may be, and whose it is."""

    name: str
    file: Path


@dataclass(frozen=True)
class Held:
    """What holds for one number of ranks. ``label`` says whose table it is from, and has the section's hash.
    ``setting`` is what the section is of. ``refused`` says why there are no rows, where a table was refused."""

    rows: Rows = field(default_factory=dict)
    label: str = ""
    file: str = ""
    setting: Setting | None = None
    refused: str = ""


@dataclass(frozen=True)
class Table:
    """What holds for ranks of one node, by their number. Rank 0 tells it to all ranks."""

    by_ranks: Mapping[int, Held] = field(default_factory=dict)

    def of(self, ranks: int) -> Held | None:
        return self.by_ranks.get(ranks)

    def label(self, ranks: int) -> str:
        """Whose table and which section a choice among so many ranks comes from; empty if there is none."""
        return self.by_ranks.get(ranks, Held()).label

    def refusals(self) -> list[str]:
        return list(dict.fromkeys(held.refused for held in self.by_ranks.values() if held.refused))


def user_file() -> Path:
    """Where ``mpicoll tune`` writes."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / _FILE


def places(chosen: str) -> Iterator[Place]:
    """Where tables may be, as MPICOLL_TABLE has ``chosen``. The first ones come first."""
    if chosen == OFF:
        return
    if chosen:
        yield Place("MPICOLL_TABLE's", Path(chosen))
    yield Place("the user's", user_file())
    yield Place("the environment's", Path(sys.prefix, "share", _FILE))
    for folder in ("/etc", *filter(None, os.environ.get("XDG_DATA_DIRS", "").split(":"))):
        yield Place("the site's", Path(folder, _FILE))
    yield Place("mpicoll's own", SHIPPED)


def held(cpu: str, mpi: str, oversubscribed: bool, size: int, chosen: str) -> Table:
    """What holds on this CPU with this MPI library, for up to ``size`` ranks. ``oversubscribed`` ranks take turns on
    the CPU's cores. ``chosen`` is MPICOLL_TABLE."""
    found: dict[int, Held] = {}
    missing = {*range(2, size + 1)}
    for place in places(chosen):
        if not missing:
            break
        try:
            there = _read(place)
        except ArgumentError as e:
            refused = f"{place.name} table is refused: {e.argument}: expected {e.expected}; given {e.given}"
            found |= {ranks: Held(file=str(place.file), refused=refused) for ranks in missing}
            break
        fitting = [s for s in there if (s.mpi, s.oversubscribed) == (mpi, oversubscribed) and s.ranks in missing]
        best = {s.ranks: s for s in fitting if s.cpu is None} | {s.ranks: s for s in fitting if s.cpu == cpu}
        found |= {ranks: _checked(section, place) for ranks, section in best.items()}
        missing -= best.keys()
    return Table(found)


def _checked(section: Section, place: Place) -> Held:
    file = str(place.file)
    if why := section.outdated():
        setting = f"{section.mpi}, {section.ranks} ranks"
        return Held(file=file, refused=f"a section of {place.name} table is refused: {file}: {setting}: {why}")
    return Held(section.rows, f"{place.name} table, section {section.hash}", file, section.setting)


def _read(place: Place) -> list[Section]:
    """The sections of the table there; none if there is no table."""
    try:
        about = place.file.stat()
        return _sections(place.file, about.st_mtime_ns, about.st_size)
    except (FileNotFoundError, NotADirectoryError):
        if place.name != "MPICOLL_TABLE's":
            return []
        raise ArgumentError("mpicoll", "MPICOLL_TABLE", "off, or a file", repr(str(place.file))) from None
    except OSError as e:
        raise ArgumentError("mpicoll", str(place.file), "a file that can be read", str(e)) from None


@lru_cache(maxsize=16)
def _sections(file: Path, changed: int, size: int) -> list[Section]:
    """The sections of a file that was last ``changed`` then."""
    return sections(contents(file), str(file))
