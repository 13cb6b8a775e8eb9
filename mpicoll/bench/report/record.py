"""The files: everything as JSON, the table as CSV. docs/how-to/benchmark.md describes both."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from mpicoll.bench.report.rows import Note, Report, Row
from mpicoll.errors import ArgumentError
from mpicoll.machine.system import write_whole

__all__ = ["SCHEMA", "columns", "head", "load", "program", "write_csv", "write_json"]

SCHEMA = "mpicoll-bench/1"


def head(report: Report) -> dict[str, Any]:
    """What is written of a report besides its figures."""
    return {
        "command": report.command, "started": report.started, "settings": report.settings,
        "environment": report.environment, "clocks": report.clocks, "interrupted": report.interrupted,
        "not_run": [
            {"backend": n.backend, "collective": n.collective, "placement": n.placement, "reason": n.reason}
            for n in report.notes
        ],
    }  # fmt: skip


def columns(row: Row) -> dict[str, Any]:
    """What is written of a row besides its times."""
    return {name: value for name, value in vars(row).items() if name != "times_us"}


def write_json(report: Report, path: Path) -> None:
    """Each row is a line, so that people can compare records."""
    found = report.rounded()
    copies = [{"size": size, "p50_us": us} for size, us in found.copies.items()]
    whole = {"schema": SCHEMA, **head(found), "copies": copies}
    above = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in whole.items())
    body = ",\n".join(json.dumps(vars(row), separators=(",", ":")) for row in found.rows)
    write_whole(path, f'{{\n{above},\n"rows": [\n{body}\n]\n}}\n')


def write_csv(report: Report, path: Path) -> None:
    rows = [columns(row) for row in report.rounded().rows]
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, rows[0].keys() if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def load(path: Path) -> Report:
    """A record that the benchmark wrote. Raises ArgumentError for any other file."""
    expected = "a file that `mpicoll bench --json` wrote"
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise ArgumentError("bench", "record", expected, f"{path}: {e}") from e
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ArgumentError("bench", "record", expected, str(path))
    known = {each.name for each in fields(Row)}
    try:
        return Report(
            found["command"], found["started"], found["settings"], found["environment"],
            [Note(**note) for note in found["not_run"]], found.get("clocks", {}),
            [Row(**{name: value for name, value in row.items() if name in known}) for row in found["rows"]],
            {copy["size"]: copy["p50_us"] for copy in found.get("copies", ())}, found.get("interrupted", False),
        )  # fmt: skip
    except (KeyError, TypeError) as e:
        raise ArgumentError("bench", "record", expected, f"{path}, where {e} is missing") from e


def program(operation: str, expected: str, argv: int, run: Callable[..., int]) -> int:
    """Call ``run`` with the arguments of the command line, as many as ``argv`` says. ``expected`` says what they are.
    Returns the exit code that ``run`` returns, or 2 after the message of an ArgumentError."""
    given = sys.argv[1:]
    try:
        if len(given) != argv:
            raise ArgumentError(operation, "arguments", expected, " ".join(given) or "none")
        return run(*given)
    except ArgumentError as e:
        print(f"mpicoll: {e}", file=sys.stderr)
        return 2
