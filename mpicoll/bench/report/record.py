"""The files: everything as JSON, the table as CSV. docs/how-to/benchmark.md describes both."""

from __future__ import annotations

import argparse
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

SCHEMA = "mpicoll-bench/1"


def head(report: Report) -> dict[str, Any]:
    """What is written of a report besides its figures."""
    names = "command", "started", "settings", "environment", "clocks", "interrupted"
    found = {name: getattr(report, name) for name in names}
    return found | {"not_run": [dict(sorted(vars(note).items())) for note in report.notes]}


def columns(row: Row) -> dict[str, Any]:
    """What is written of a row besides its times."""
    return {name: value for name, value in vars(row).items() if name != "times_us"}


def write_json(report: Report, path: Path) -> None:
    """Each row is a line, so that people can compare records."""
    copies = [{"size": size, "p50_us": us} for size, us in sorted(report.copies.items())]
    whole = {"schema": SCHEMA, **head(report), "copies": copies}
    above = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in whole.items())
    body = ",\n".join(json.dumps(vars(row), separators=(",", ":")) for row in report.rows)
    write_whole(path, f'{{\n{above},\n"rows": [\n{body}\n]\n}}\n')


def write_csv(report: Report, path: Path) -> None:
    rows = [columns(row) for row in report.rows]
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, [each.name for each in fields(Row) if each.name != "times_us"])
        writer.writeheader()
        writer.writerows(rows)


def load(path: Path) -> Report:
    """A record that the benchmark wrote. Raises ArgumentError for any other file."""
    known = {each.name for each in fields(Row)}
    try:
        found = json.loads(path.read_text())
        schema = found.get("schema") if isinstance(found, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema}")
        return Report(
            found["command"], found["started"], found["settings"], found["environment"],
            [Note(**note) for note in found["not_run"]], found.get("clocks", {}),
            [Row(**{name: value for name, value in row.items() if name in known}) for row in found["rows"]],
            {copy["size"]: copy["p50_us"] for copy in found.get("copies", ())}, found.get("interrupted", False),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as e:
        why = f"it has no {e}" if isinstance(e, KeyError) else e
        raise ArgumentError("bench", "record", "a file that `mpicoll bench --json` wrote", f"{path}: {why}") from e


def program(doc: str | None, run: Callable[..., int | None], **arguments: type) -> int:
    """Call ``run`` with the command line's arguments, whose types are given by name. ``doc`` is the help. Returns the
    exit code that ``run`` returns, or 2 after the message of an ArgumentError."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in arguments.items():
        parser.add_argument(name, type=kind)
    try:
        return run(**vars(parser.parse_args())) or 0
    except ArgumentError as e:
        print(f"mpicoll: {e}", file=sys.stderr)
        return 2
