"""The picture: time and bus bandwidth over size, with a line for each backend, and the floor under the times.

``python -m mpicoll.bench.report.plot record.json picture.png`` draws it again from a record.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.bench.report import style
from mpicoll.bench.report.record import load, program
from mpicoll.bench.report.rows import Report, Row, grouped
from mpicoll.units import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "main"]

_FLOOR = "memory copy"


def draw(report: Report, path: Path) -> None:
    """Draw two panels for each collective that moves data, in the placement that is usual for it."""
    looks = style.styles(row.backend for row in report.rows)
    usual = grouped((row for row in report.rows if row.size and row.is_usual), "collective")
    ranks = report.environment["ranks"]

    def fill(rows: list[Row], left: Axes, right: Axes) -> dict[str, Any]:
        handles = {}
        mine = grouped(rows, "backend")
        for backend in (name for name in looks if name in mine):
            look, of_backend = looks[backend], mine[backend]
            at, name = [row.size for row in of_backend], of_backend[0].label
            low, high = (np.array([np.percentile(row.times_us, q) for row in of_backend]) for q in (10, 90))
            left.fill_between(at, low, high, color=look.color, alpha=0.13, linewidth=0)
            (handles[name],) = left.plot(at, [row.p50_us for row in of_backend], **look.line(name))
            right.plot(at, [row.bandwidth for row in of_backend], **look.line(backend))
        sizes = sorted({row.size for row in rows})
        floor = [(size, us) for size, us in report.copies.items() if size in sizes]
        if floor:
            (handles[_FLOOR],) = left.plot(*zip(*floor, strict=True), color=style.REFERENCE, linewidth=1)
        for axes in (left, right):
            _size_axis(axes, sizes)
        left.set_yscale("log")
        left.yaxis.set_major_formatter(style.duration)
        left.set_ylabel("time: median, and band from p10 to p90")
        right.set_ylim(bottom=0)
        right.set_ylabel("bus bandwidth (GB/s), of the median")
        return handles

    source = textwrap.fill(_environment(report.environment), 130)
    style.draw(path, {_title(rows[0], ranks): rows for rows in usual.values()}, fill, source)


def _size_axis(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    step = -(-len(sizes) // 7)
    shown = sizes[::step]
    if (len(sizes) - 1) % step * 2 > step:
        shown.append(sizes[-1])
    axes.set_xticks(shown, [size_text(s) for s in shown])
    axes.set_xlabel("size (bytes)")


def _title(row: Row, ranks: int) -> str:
    op = f" {row.redop}" if row.redop else ""
    return f"{row.collective}, {row.type}{op}, {ranks} ranks, {row.placement.replace('-', ' ')}"


def _environment(e: dict[str, Any]) -> str:
    gpus = "".join(f" · {gpu}" for gpu in dict.fromkeys(e["gpus"]))
    torch = f" · torch {e['torch']}" if e["torch"] else ""
    return f"{e['cpu']}, {e['cores']} cores{gpus} · {e['mpi']} · mpi4py {e['mpi4py']}{torch} · mpicoll {e['mpicoll']}"


def _draw_again(record: str, picture: str) -> int:
    draw(load(Path(record)), Path(picture))
    return 0


def main() -> int:
    return program("plot", "a record and the picture to write", 2, _draw_again)


if __name__ == "__main__":
    sys.exit(main())
