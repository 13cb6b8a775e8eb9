"""The picture: time and bus bandwidth over size, with a line for each backend, and the floor under the times.

``python -m mpicoll.bench.report.plot record.json picture.png`` draws it again from a record.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpicoll.bench.report import style
from mpicoll.bench.report.record import load, program
from mpicoll.bench.report.rows import Report, Row, grouped
from mpicoll.units import size_text


def draw(report: Report, path: Path) -> None:
    """Draw two panels for each collective that moves data, in the placement that is usual for it."""
    e = report.environment
    machine = " · ".join((f"{e['cpu']}, {e['cores']} cores", *dict.fromkeys(e["gpus"]), e["mpi"]))
    versions = "".join(f" · {name} {e[name]}" for name in ("mpi4py", "torch", "mpicoll") if e[name])
    usual = grouped((row for row in report.rows if row.size and row.is_usual), "collective")
    panels = {_title(rows[0], e["ranks"]): _panels(rows, report.copies) for rows in usual.values()}
    style.draw(path, panels, textwrap.fill(machine + versions, 130))


def _title(row: Row, ranks: int) -> str:
    op = f" {row.redop}" if row.redop else ""
    return f"{row.collective}, {row.type}{op}, {ranks} ranks, {row.placement.replace('-', ' ')}"


def _panels(rows: Sequence[Row], copies: dict[int, float]) -> tuple[style.Panel, style.Panel]:
    lines = grouped(rows, "label")
    times = {name: [(row.size, row.p50_us / 1e6) for row in mine] for name, mine in lines.items()}
    bands = {
        name: [(row.size, *np.percentile(row.times_us, (10, 90)) / 1e6) for row in mine] for name, mine in lines.items()
    }
    bandwidths = {name: [(row.size, row.bandwidth) for row in mine] for name, mine in lines.items()}
    floor = [(size, copies[size] / 1e6) for size in sorted({row.size for row in rows}) if size in copies]
    if floor:
        times[style.FLOOR] = floor
    return (
        style.Panel("size (bytes)", "time: median, and band from p10 to p90", size_text, times, bands),
        style.Panel("size (bytes)", "bus bandwidth (GB/s), of the median", size_text, bandwidths),
    )


def main() -> int:
    return program(__doc__, lambda record, picture: draw(load(record), picture), record=Path, picture=Path)


if __name__ == "__main__":
    sys.exit(main())
