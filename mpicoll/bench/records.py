"""What a benchmark measured, as rows, each of one case on one backend, and as files: docs/how-to/benchmark.md describes
them. Times are in microseconds, sizes in bytes, bandwidths in 10^9 bytes a second, rounded as the files have them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from mpicoll.bench.cases import PLACEMENTS, Case
from mpicoll.errors import ArgumentError
from mpicoll.machine.system import write_whole

T = TypeVar("T")
SCHEMA = "mpicoll-bench/1"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case on one backend. docs/how-to/benchmark.md describes the fields. ``times_us`` has the time of each call on
    its slowest rank."""

    collective: str
    size: int
    count: int
    type: str
    redop: str | None
    root: int | None
    backend: str
    placement: str
    route: str
    calls: int
    time_us: float
    p50_us: float
    p99_us: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: int
    ratio: float | None
    comparable: bool
    caveat: str
    times_us: list[float]

    @property
    def bandwidth(self) -> float:
        """The bus bandwidth of the median call. ``busbw_gbs`` is that of the mean, as in nccl-tests."""
        return self.busbw_gbs * self.time_us / self.p50_us

    @property
    def is_usual(self) -> bool:
        """Whether the row is of its collective's usual placement, which all backends have."""
        return self.placement == PLACEMENTS[self.collective][0]

    @property
    def label(self) -> str:
        """The backend, with what its figures do not show."""
        return f"{self.backend} ({self.caveat})" if self.caveat else self.backend


def measured(case: Case, backend: str, route: str, times: list[float], wrong: int) -> Row:
    """The row of a case. ``route`` is what has carried the calls out. ``wrong`` counts wrong elements over all
    checks."""
    mean = float(np.mean(times))
    algbw = case.bytes / mean / 1e3
    of_nccl = backend == "nccl"
    caveat = f"GPU shared by {case.sharing} ranks" + ": not NCCL's bandwidth" * of_nccl if case.sharing > 1 else ""
    return Row(
        collective=case.name, size=case.bytes, count=case.count, type=case.dtype.name,
        redop=case.op if case.collective.reduces else None, root=case.root if case.collective.rooted else None,
        backend=backend, placement=case.placement, route=route, calls=len(times), time_us=round(mean, 3),
        p50_us=_percentile(times, 50), p99_us=_percentile(times, 99), algbw_gbs=round(algbw, 6),
        busbw_gbs=round(algbw * case.collective.bus_factor(case.ranks), 6),
        wrong=wrong, ratio=None,
        comparable=not (of_nccl and caveat),  # NCCL is not made for ranks that share a GPU
        caveat=caveat, times_us=[round(us, 2) for us in times],
    )  # fmt: skip


def _percentile(times: Sequence[float], percent: int) -> float:
    return round(float(np.percentile(times, percent)), 3)


def rated(rows: Sequence[Row], first: str) -> list[Row]:
    """The rows of one size with their ratios: a backend's median over that of the backend ``first``. Above 1, it is
    slower. None where there is nothing to compare."""
    firsts = {row.placement: row.p50_us for row in rows if row.backend == first and row.comparable}

    def ratio(row: Row) -> float | None:
        return round(row.p50_us / firsts[row.placement], 4) if row.comparable and row.placement in firsts else None

    return [replace(row, ratio=ratio(row)) for row in rows]


def grouped(rows: Iterable[T], *names: str) -> dict[Any, list[T]]:
    """The rows by the values of these fields, in the order in which the values come first."""
    found: dict[Any, list[T]] = {}
    for row in rows:
        found.setdefault(attrgetter(*names)(row), []).append(row)
    return found


@dataclass(frozen=True)
class Note:
    """Why a backend, or one collective of it in one placement, was not measured."""

    backend: str
    reason: str
    collective: str | None = None
    placement: str | None = None

    def __str__(self) -> str:
        where = f" {self.placement.replace('-', ' ')}" if self.placement else ""
        what = f" {self.collective}{where}" if self.collective else ""
        return f"{self.backend} does not run{what}: {self.reason}"


@dataclass
class Report:
    """Everything that a benchmark found."""

    command: str
    started: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    notes: list[Note] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    interrupted: bool = False

    @property
    def wrong(self) -> int:
        return sum(row.wrong for row in self.rows)


def head(report: Report) -> dict[str, Any]:
    """What is written of a report besides its figures."""
    names = "command", "started", "settings", "environment", "interrupted"
    found = {name: getattr(report, name) for name in names}
    return found | {"not_run": [dict(sorted(vars(note).items())) for note in report.notes]}


def columns(row: Row) -> dict[str, Any]:
    """What is written of a row besides its times."""
    return {name: value for name, value in vars(row).items() if name != "times_us"}


def write_json(report: Report, path: Path) -> None:
    whole = {"schema": SCHEMA, **head(report)}
    above = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in whole.items())
    body = ",\n".join(json.dumps(vars(row), separators=(",", ":")) for row in report.rows)
    write_whole(path, f'{{\n{above},\n"rows": [\n{body}\n]\n}}\n')


def load(path: Path) -> Report:
    """A record that the benchmark wrote. Raises ArgumentError for any other file."""
    try:
        found = json.loads(path.read_text())
        schema = found.get("schema") if isinstance(found, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema}")
        notes, rows = [Note(**note) for note in found["not_run"]], [Row(**row) for row in found["rows"]]
        names = "command", "started", "settings", "environment", "interrupted"
        return Report(**{name: found[name] for name in names}, notes=notes, rows=rows)
    except (OSError, ValueError, KeyError, TypeError) as e:
        why = f"it has no {e}" if isinstance(e, KeyError) else e
        raise ArgumentError("bench", "record", "a file that `mpicoll bench --json` wrote", f"{path}: {why}") from e


def program(doc: str | None, run: Callable[..., int | None], **arguments: type) -> NoReturn:
    """Call ``run`` with the command line's arguments, whose types are given by name, and exit with the code that it
    returns, or with 2 after the message of an ArgumentError. ``doc`` is the help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in arguments.items():
        parser.add_argument(name, type=kind)
    try:
        sys.exit(run(**vars(parser.parse_args())))
    except ArgumentError as e:
        print(f"mpicoll: {e}", file=sys.stderr)
        sys.exit(2)
