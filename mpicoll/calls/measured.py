"""Where schedules were measured to be faster than the algorithm that would be chosen otherwise.

``select.json`` has a section for each setting that was measured: a CPU, an MPI library, a number of ranks, and whether
the ranks take turns on cores. A section holds for its setting alone. A section whose ``cpu`` is null has what was
measured on several CPUs. It holds on every CPU that has no section of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from mpicoll import algorithms
from mpicoll.collectives import COLLECTIVES
from mpicoll.errors import ArgumentError

__all__ = ["Rows", "Section", "Table", "sections", "table"]

Rows = Mapping[tuple[str, str], tuple[tuple[int, str], ...]]
"""The rows of each pair of algorithm that would be chosen otherwise (``native`` or ``exchange``) and collective. A row
is a number of bytes and the algorithm that is fastest from there on. The rows of longer vectors come first."""
Table = Mapping[int, Rows]
"""The rows by number of ranks."""

_OTHERWISE = ("native", "exchange")
_KEYS = ("cpu", "mpi", "ranks", "oversubscribed", *_OTHERWISE)


@dataclass(frozen=True, slots=True)
class Section:
    """What was measured in one setting. ``mpi`` is the library with its version."""

    cpu: str | None
    mpi: str
    ranks: int
    oversubscribed: bool
    rows: Rows


def table(cpu: str, mpi: str, oversubscribed: bool) -> Table:
    """What holds on this CPU with this MPI library. ``oversubscribed`` ranks take turns on the CPU's cores."""
    fitting = [s for s in _packaged() if (s.mpi, s.oversubscribed) == (mpi, oversubscribed)]
    on_any_cpu = {s.ranks: s.rows for s in fitting if s.cpu is None}
    return on_any_cpu | {s.ranks: s.rows for s in fitting if s.cpu == cpu}


@cache
def _packaged() -> list[Section]:
    return sections(resources.files("mpicoll.calls").joinpath("select.json").read_text())


def sections(text: str) -> list[Section]:
    """The sections of a ``select.json``. Raises ArgumentError, which says where in the file the first fault is."""
    try:
        given = json.loads(text)
    except ValueError as e:
        raise ArgumentError("mpicoll", "select.json", "JSON", str(e)) from None
    _expect(isinstance(given, dict) and [*given] == ["measured"], "", "an object with measured alone", given)
    _expect(isinstance(given["measured"], list), "measured", "a list", given["measured"])
    read = [_section(f"measured[{i}]", section) for i, section in enumerate(given["measured"])]
    settings = [(s.cpu, s.mpi, s.ranks, s.oversubscribed) for s in read]
    for i, setting in enumerate(settings):
        _expect(setting not in settings[:i], f"measured[{i}]", "each setting once", setting)
    return read


def _section(at: str, given: Any) -> Section:
    _expect(isinstance(given, dict) and {*given} == {*_KEYS}, at, f"an object with {', '.join(_KEYS)}", given)
    cpu, mpi, ranks, oversubscribed = (given[key] for key in _KEYS[:4])
    _expect(cpu is None or (isinstance(cpu, str) and cpu), f"{at}.cpu", "a fingerprint, or null", cpu)
    _expect(isinstance(mpi, str) and mpi, f"{at}.mpi", "an MPI library and its version", mpi)
    _expect(type(ranks) is int and ranks > 1, f"{at}.ranks", "a number of ranks, at least 2", ranks)
    _expect(type(oversubscribed) is bool, f"{at}.oversubscribed", "true or false", oversubscribed)
    rows: dict[tuple[str, str], tuple[tuple[int, str], ...]] = {}
    for otherwise in _OTHERWISE:
        _expect(isinstance(given[otherwise], dict), f"{at}.{otherwise}", "an object", given[otherwise])
        for collective, by_bytes in given[otherwise].items():
            where = f"{at}.{otherwise}.{collective}"
            rows[otherwise, collective] = _rows(where, collective, otherwise, ranks, by_bytes)
    return Section(cpu, mpi, ranks, oversubscribed, rows)


def _rows(at: str, collective: str, otherwise: str, ranks: int, given: Any) -> tuple[tuple[int, str], ...]:
    """The rows of a collective. Raises ArgumentError for an algorithm that does not serve so many ranks."""
    known = collective in COLLECTIVES and (otherwise == "native" or COLLECTIVES[collective].reduces)
    _expect(known, at, f"a collective of which {otherwise} is one algorithm", collective)
    _expect(isinstance(given, dict), at, "algorithms by bytes", given)
    for nbytes, name in given.items():
        _expect(nbytes.isdecimal(), at, "bytes, whole numbers", nbytes)
        schedule = algorithms.find(collective, name) if isinstance(name, str) else None
        serves = schedule is not None and not any(schedule.declines(ranks, root) for root in range(ranks))
        _expect(serves or name == otherwise, f"{at}.{nbytes}", f"an algorithm that serves {ranks} ranks", name)
    return tuple(sorted(((int(nbytes), name) for nbytes, name in given.items()), reverse=True))


def _expect(condition: object, at: str, expected: str, given: object) -> None:
    """Raise ArgumentError for what is ``at`` a place of the file, unless the condition is true."""
    if not condition:
        raise ArgumentError("mpicoll", f"select.json {at}".strip(), expected, repr(given))
