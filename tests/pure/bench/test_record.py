"""The files that a benchmark writes."""

from __future__ import annotations

import csv
from pathlib import Path

from mpicoll.bench.records import Report, write_csv


def test_a_table_without_rows_names_its_columns(tmp_path: Path) -> None:
    """A benchmark may be interrupted before the first size."""
    file = tmp_path / "f.csv"
    write_csv(Report("", "", {}, {}), file)
    with file.open() as lines:
        reader = csv.DictReader(lines)
        assert [*reader] == []
        assert {"backend", "size", "p50_us"} <= {*(reader.fieldnames or ())}
        assert "times_us" not in (reader.fieldnames or ())
