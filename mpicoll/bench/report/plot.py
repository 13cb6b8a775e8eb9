"""The picture: time and bus bandwidth over size, with a line for each backend, and the floor under the times.

``python -m mpicoll.bench.report.plot record.json picture.png`` draws it again from a record.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.bench.report.record import Record, Row, is_usual, label, load
from mpicoll.bench.report.style import REFERENCE, SETTINGS, WIDTH, Style, duration, legend, note, styles
from mpicoll.errors import ArgumentError
from mpicoll.units import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "main"]

_FLOOR = "memory copy"


def draw(record: Record, path: Path) -> None:
    """Draw two panels for each collective that moves data, in the placement that is usual for it."""
    import matplotlib
    from matplotlib.figure import Figure

    usual = [row for row in record["rows"] if row["size"] and is_usual(row)]
    names = list(dict.fromkeys(row["collective"] for row in usual))
    looks = styles(row["backend"] for row in record["rows"])
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, 0.6), dpi=200, layout="constrained")
        note(figure, textwrap.fill(_environment(record["environment"]), 130))
        if names:
            handles: dict[str, Any] = {}
            for name, (left, right) in zip(names, figure.subplots(len(names), 2, squeeze=False), strict=True):
                rows = [row for row in usual if row["collective"] == name]
                handles |= _panels(rows, record.get("copies", []), looks, left, right)
                left.set_title(_title(rows[0], record), loc="left", fontsize=10, fontweight="bold", pad=8)
            figure.set_figheight(2.9 * len(names) + 0.4 + legend(figure, handles))
        figure.savefig(path)


def _panels(rows: list[Row], copies: list[Row], looks: dict[str, Style], left: Axes, right: Axes) -> dict[str, Any]:
    """Fill both panels of a collective. Returns the lines by their labels."""
    handles = {}
    for backend, style in looks.items():
        mine = [row for row in rows if row["backend"] == backend]
        if not mine:
            continue
        at = [row["size"] for row in mine]
        low, high = (np.array([np.percentile(row["times_us"], q) for row in mine]) for q in (10, 90))
        left.fill_between(at, low, high, color=style.color, alpha=0.13, linewidth=0)
        name = label(mine[0])
        (handles[name],) = left.plot(at, [row["p50_us"] for row in mine], **style.line(name))
        of_median = [row["busbw_gbs"] * row["time_us"] / row["p50_us"] for row in mine]
        right.plot(at, of_median, **style.line(backend))
    sizes = sorted({row["size"] for row in rows})
    floor = [(c["size"], c["p50_us"]) for c in copies if c["size"] in sizes]
    if floor:
        (handles[_FLOOR],) = left.plot(*zip(*floor, strict=True), color=REFERENCE, linewidth=1)
    for axes in (left, right):
        _size_axis(axes, sizes)
    left.set_yscale("log")
    left.yaxis.set_major_formatter(duration)
    left.set_ylabel("time: median, and band from p10 to p90")
    right.set_ylim(bottom=0)
    right.set_ylabel("bus bandwidth (GB/s), of the median")
    return handles


def _size_axis(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    step = -(-len(sizes) // 7)
    shown = sizes[::step]
    if (len(sizes) - 1) % step * 2 > step:
        shown.append(sizes[-1])
    axes.set_xticks(shown, [size_text(s) for s in shown])
    axes.set_xlabel("size (bytes)")


def _title(row: Row, record: Record) -> str:
    op = f" {row['redop']}" if row["redop"] else ""
    placement = row["placement"].replace("-", " ")
    return f"{row['collective']}, {row['type']}{op}, {record['environment']['ranks']} ranks, {placement}"


def _environment(e: dict[str, Any]) -> str:
    gpus = "".join(f" · {gpu}" for gpu in dict.fromkeys(e["gpus"]))
    torch = f" · torch {e['torch']}" if e["torch"] else ""
    return f"{e['cpu']}, {e['cores']} cores{gpus} · {e['mpi']} · mpi4py {e['mpi4py']}{torch} · mpicoll {e['mpicoll']}"


def main() -> int:
    try:
        if len(sys.argv) != 3:
            given = " ".join(sys.argv[1:]) or "none"
            raise ArgumentError("plot", "arguments", "a record and the picture to write", given)
        draw(load(Path(sys.argv[1])), Path(sys.argv[2]))
    except ArgumentError as e:
        print(f"mpicoll: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
