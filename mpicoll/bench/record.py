"""The files: everything as JSON, the table as CSV. docs/how-to/benchmark.md describes both."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from mpicoll.bench.figures import Line, Measurement, Report

__all__ = ["SCHEMA", "as_dict", "write_csv", "write_json"]

SCHEMA = "mpicoll-bench/1"


def as_dict(report: Report) -> dict[str, Any]:
    """The report in the form that is written."""
    return {
        "schema": SCHEMA,
        "command": report.command,
        "started": report.started,
        "settings": report.settings,
        "environment": report.environment,
        "interrupted": report.interrupted,
        "not_run": [
            {"backend": n.backend, "collective": n.collective, "placement": n.placement, "reason": n.reason}
            for n in report.notes
        ],
        "rows": [
            {**_row(line, m), "times_us": [round(t, 2) for t in m.times]} for line, m in report.measurements
        ],
    }  # fmt: skip


def _row(line: Line, m: Measurement) -> dict[str, Any]:
    c, kinds = m.case, m.case.rule.collective
    ratio = line.ratio(c.placement)
    return {
        "collective": c.name,
        "size": c.bytes,
        "count": c.count,
        "type": c.dtype.name,
        "redop": c.op if kinds.reduces else None,
        "root": c.root if kinds.rooted else None,
        "backend": m.backend,
        "placement": {"out": "out-of-place", "in": "in-place"}[c.placement],
        "route": m.route,
        "calls": len(m.times),
        "time_us": round(m.time, 3),
        "p50_us": round(m.p50, 3),
        "p99_us": round(m.p99, 3),
        "algbw_gbs": round(m.algbw, 6),
        "busbw_gbs": round(m.busbw, 6),
        "wrong": m.wrong,
        "ratio": None if ratio is None else round(ratio, 4),
    }


def write_json(report: Report, path: Path) -> None:
    """One row a line, so that records can be compared by eye."""
    found = as_dict(report)
    rows = found.pop("rows")
    head = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    body = ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows)
    path.write_text(f'{{\n{head},\n"rows": [\n{body}\n]\n}}\n')


def write_csv(report: Report, path: Path) -> None:
    rows = [_row(line, m) for line, m in report.measurements]
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, rows[0].keys() if rows else [])
        writer.writeheader()
        writer.writerows(rows)
