"""Tables of measurements: where schedules were measured to be faster than the algorithm that would be chosen otherwise.

A table is a file in JSON. It has a section for each setting that was measured: a CPU, an MPI library, a number of
ranks, and whether the ranks take turns on cores. A section holds for its setting alone. A section whose ``cpu`` is null
has what was measured on several CPUs. It holds on every CPU that has no section of its own.

A section may also have the times that its rows come from (``mpicoll tune`` writes and reads them). No job looks at
these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from stat import S_ISREG
from typing import Any

from mpicoll import algorithms
from mpicoll.algorithms.collectives import COLLECTIVES, UNEVEN, even_and_uneven
from mpicoll.algorithms.digests import digest
from mpicoll.calls.choice import CICO
from mpicoll.errors import ArgumentError
from mpicoll.machine.caches import both_help

__all__ = [
    "OTHERWISE",
    "SCHEMA",
    "SETTING",
    "Digests",
    "Rows",
    "Section",
    "Setting",
    "cico_digest",
    "contents",
    "given_sections",
    "section",
    "sections",
]

SCHEMA = "mpicoll-table/1"
OTHERWISE = ("native", "exchange")
"""What schedules are compared with."""

Rows = Mapping[tuple[str, str], tuple[tuple[int, str], ...]]
"""The rows of each pair of algorithm that would be chosen otherwise (``native`` or ``exchange``) and collective. A row
is a number of bytes and the algorithm that is fastest from there on. The rows of longer vectors come first."""
Setting = tuple[str | None, str, int, bool]
"""The CPU, the MPI library with its version, the number of ranks, and whether they take turns on cores."""
SETTING = ("cpu", "mpi", "ranks", "oversubscribed")
"""The keys of a setting, as a section has them."""
Digests = Mapping[str, Mapping[str, str]]
"""By collective and algorithm, the digest of what was measured."""

_RANKS = 1 << 12
"""The most ranks of one node. A table that names more was not measured."""
_KEYS = (*SETTING, "algorithms", *OTHERWISE)
_OF_THE_TUNER = ("environment", "launches", "model", "times")


@dataclass(frozen=True)
class Section:
    """What was measured in one setting. ``mpi`` is the library with its version."""

    cpu: str | None
    mpi: str
    ranks: int
    oversubscribed: bool
    rows: Rows
    digests: Digests

    @property
    def setting(self) -> Setting:
        return self.cpu, self.mpi, self.ranks, self.oversubscribed

    @property
    def hash(self) -> str:
        """A hash of what it says to jobs."""
        said = [self.setting, sorted(self.rows.items()), sorted((c, sorted(of.items())) for c, of in self._used())]
        return blake2b(repr(said).encode(), digest_size=6).hexdigest()

    def _used(self) -> list[tuple[str, dict[str, str]]]:
        """The digests of the algorithms that its rows name."""
        used = {(c, name) for (_, c), rows in self.rows.items() for _, name in rows if name not in OTHERWISE}
        return [(c, {n: d for n, d in of.items() if (c, n) in used}) for c, of in self.digests.items()]

    def outdated(self) -> str:
        """Why it must not be used by this mpicoll: what is wrong with an algorithm that its rows name; else empty."""
        for (_, collective), rows in self.rows.items():
            for _, name in rows:
                if name not in OTHERWISE and (why := self.unlike(collective, name)):
                    return why
        return ""

    def unlike(self, collective: str, name: str) -> str:
        """Why this algorithm is not what was measured; empty if it is."""
        table, _ = even_and_uneven(collective)
        if name == CICO and table.moves:
            same = self.digests.get(collective, {}).get(name) == cico_digest(self.cpu)
            return "" if same else f"{name} has changed since it was measured"
        found = algorithms.find(table.name, name)
        if found is None:
            return f"{collective} has no algorithm {name}"
        if any(found.declines(self.ranks, root) for root in range(self.ranks)):
            return f"{collective} {name} does not serve {self.ranks} ranks"
        if digest(found, self.ranks) != self.digests.get(collective, {}).get(name):
            return f"{collective} {name} has changed since it was measured"
        return ""


def cico_digest(cpu: str | None) -> str:
    """Another one for each change of how ``cico`` goes on a CPU: what was measured before holds no longer. A section
    without a CPU has what won on CPUs of both kinds."""
    return "2" if cpu is not None and both_help(cpu) else "1"


def contents(file: Path) -> str:
    """The text of a table's file. Raises FileNotFoundError or NotADirectoryError if there is none, and ArgumentError if
    it cannot be read. A pipe or a device is not read: that might never end."""
    try:
        if not S_ISREG(file.stat().st_mode):
            raise ArgumentError("mpicoll", str(file), "a file that can be read", "a folder, a pipe or a device")
        return file.read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, UnicodeDecodeError) as e:
        raise ArgumentError("mpicoll", str(file), "a file that can be read", str(e)) from None


def sections(text: str, file: str) -> list[Section]:
    """The sections of a table. Raises ArgumentError, which says where in the file the first fault is."""
    read = [section(file, i, given) for i, given in enumerate(given_sections(text, file))]
    for i, each in enumerate(read):
        known = [before.setting for before in read[:i]]
        _expect(each.setting not in known, file, f"sections[{i}]", "each setting once", each.setting)
    return read


def given_sections(text: str, file: str) -> list[Any]:
    """The sections as the file has them, not checked yet."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as e:  # the latter for thousands of brackets
        raise ArgumentError("mpicoll", file, "JSON", str(e)) from None
    schema = given.get("schema") if isinstance(given, dict) else None
    _expect(schema == SCHEMA, file, "schema", f"{SCHEMA!r}, the form of tables that this mpicoll reads", schema)
    found = given.get("sections")
    _expect(isinstance(found, list), file, "sections", "a list", found)
    return list(found)


def section(file: str, number: int, given: Any) -> Section:
    """One of them. Raises ArgumentError."""
    at = f"sections[{number}]"
    known = isinstance(given, dict) and {*_KEYS} <= {*given} <= {*_KEYS, *_OF_THE_TUNER}
    _expect(known, file, at, f"an object with {', '.join(_KEYS)}", given)
    cpu, mpi, ranks, oversubscribed = (given[key] for key in SETTING)
    _expect(cpu is None or (isinstance(cpu, str) and cpu), file, f"{at}.cpu", "a fingerprint, or null", cpu)
    _expect(isinstance(mpi, str) and mpi, file, f"{at}.mpi", "an MPI library and its version", mpi)
    of_a_node = type(ranks) is int and 1 < ranks <= _RANKS
    _expect(of_a_node, file, f"{at}.ranks", f"a number of ranks, from 2 to {_RANKS}", ranks)
    _expect(type(oversubscribed) is bool, file, f"{at}.oversubscribed", "true or false", oversubscribed)
    digests = given["algorithms"]
    of_texts = isinstance(digests, dict) and all(
        isinstance(of, dict) and all(isinstance(each, str) for each in of.values()) for of in digests.values()
    )
    _expect(of_texts, file, f"{at}.algorithms", "digests by collective and algorithm", digests)
    rows: dict[tuple[str, str], tuple[tuple[int, str], ...]] = {}
    for otherwise in OTHERWISE:
        _expect(isinstance(given[otherwise], dict), file, f"{at}.{otherwise}", "an object", given[otherwise])
        for collective, by_bytes in given[otherwise].items():
            rows[otherwise, collective] = _rows(file, f"{at}.{otherwise}.{collective}", collective, otherwise, by_bytes)
    return Section(cpu, mpi, ranks, oversubscribed, rows, digests)


def _rows(file: str, at: str, collective: str, otherwise: str, given: Any) -> tuple[tuple[int, str], ...]:
    known = (collective in COLLECTIVES or collective in UNEVEN) and (
        otherwise == "native" or even_and_uneven(collective)[0].reduces
    )
    _expect(known, file, at, f"a collective of which {otherwise} is one algorithm", collective)
    _expect(isinstance(given, dict), file, at, "algorithms by bytes", given)
    other = {*OTHERWISE} - {otherwise}
    for nbytes, name in given.items():
        whole = nbytes.isdecimal() and len(nbytes) < 20  # Python refuses to read numbers of thousands of digits
        _expect(whole, file, at, "bytes, whole numbers", nbytes)
        _expect(isinstance(name, str) and name not in other, file, f"{at}.{nbytes}", "an algorithm's name", name)
    return tuple(sorted(((int(nbytes), name) for nbytes, name in given.items()), reverse=True))


def _expect(condition: object, file: str, at: str, expected: str, given: object) -> None:
    """Raise ArgumentError for what is ``at`` a place of the file, unless the condition is true."""
    if not condition:
        shown = repr(given)
        raise ArgumentError("mpicoll", f"{file}: {at}", expected, shown if len(shown) < 200 else f"{shown[:200]}...")
