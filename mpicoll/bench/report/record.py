"""The files: everything as JSON, the table as CSV. docs/how-to/benchmark.md describes both."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from mpicoll.bench.cases.case import PLACEMENTS
from mpicoll.bench.report.measurements import Line, Measurement, Report
from mpicoll.errors import ArgumentError
from mpicoll.machine.system import write_whole

__all__ = ["SCHEMA", "Record", "Row", "as_dict", "is_usual", "label", "load", "write_csv", "write_json"]

SCHEMA = "mpicoll-bench/1"
_PLACEMENTS = {"in": "in-place", "out": "out-of-place"}

Record = dict[str, Any]
"""A report as it is written and read."""
Row = dict[str, Any]
"""A measurement in it."""


def as_dict(report: Report) -> Record:
    """The report as it is written."""
    return {
        "schema": SCHEMA,
        "command": report.command,
        "started": report.started,
        "settings": report.settings,
        "environment": report.environment,
        "clocks": report.clocks,
        "interrupted": report.interrupted,
        "not_run": [
            {"backend": n.backend, "collective": n.collective, "placement": n.placement, "reason": n.reason}
            for n in report.notes
        ],
        "copies": [{"size": size, "p50_us": round(us, 3)} for size, us in sorted(report.copies.items())],
        "rows": [
            {**_row(line, m), "times_us": [round(t, 2) for t in m.times]} for line, m in report.measurements
        ],
    }  # fmt: skip


def _row(line: Line, m: Measurement) -> Row:
    c, collective = m.case, m.case.collective
    ratio = line.ratio(c.placement)
    return {
        "collective": c.name,
        "size": c.bytes,
        "count": c.count,
        "type": c.dtype.name,
        "redop": c.op if collective.reduces else None,
        "root": c.root if collective.rooted else None,
        "backend": m.backend,
        "placement": _PLACEMENTS[c.placement],
        "route": m.route,
        "calls": len(m.times),
        "time_us": round(m.time, 3),
        "p50_us": round(m.p50, 3),
        "p99_us": round(m.p99, 3),
        "algbw_gbs": round(m.algbw, 6),
        "busbw_gbs": round(m.busbw, 6),
        "event_p50_us": None if m.event_p50 is None else round(m.event_p50, 3),
        "wrong": m.wrong,
        "ratio": None if ratio is None else round(ratio, 4),
        "comparable": m.comparable,
        "caveat": m.caveat,
    }


def write_json(report: Report, path: Path) -> None:
    """Each row is a line, so that people can compare records."""
    found = as_dict(report)
    rows = found.pop("rows")
    head = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    body = ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows)
    write_whole(path, f'{{\n{head},\n"rows": [\n{body}\n]\n}}\n')


def write_csv(report: Report, path: Path) -> None:
    rows = [_row(line, m) for line, m in report.measurements]
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, rows[0].keys() if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def is_usual(row: Row) -> bool:
    """Whether the row is of its collective's usual placement, which all backends have."""
    return bool(row["placement"] == _PLACEMENTS[PLACEMENTS[row["collective"]][0]])


def label(row: Row) -> str:
    """The row's backend, with what its figures do not show."""
    caveat = row.get("caveat")  # older records have none
    return f"{row['backend']} ({caveat})" if caveat else str(row["backend"])


def load(path: Path) -> Record:
    """A record that the benchmark wrote. Raises ArgumentError for any other file."""
    expected = "a file that `mpicoll bench --json` wrote"
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise ArgumentError("bench", "record", expected, f"{path}: {e}") from e
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ArgumentError("bench", "record", expected, str(path))
    return found
