"""``python -m mpicoll.bench.report.scaling FOLDER N``: compares N benchmarks, each on another number of nodes.

It reads the records ``nodes-*.json`` in the folder, prints a table, and writes ``scaling.json`` and ``scaling.png``
there. It loads neither MPI nor torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.bench.report import style
from mpicoll.bench.report.record import load, program
from mpicoll.bench.report.rows import Report, ends, fastest, grouped
from mpicoll.errors import ArgumentError
from mpicoll.units import count, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Point", "draw", "gather", "main", "table"]

_EXPECTED = "a folder and how many records it should hold"


@dataclass(frozen=True)
class Point:
    """The faster placement of one size on one backend and so many nodes."""

    collective: str
    size: int
    p50_us: float
    wrong: int
    backend: str
    busbw_gbs: float
    nodes: int
    ranks: int


def gather(reports: Sequence[Report]) -> list[Point]:
    """The smallest and the largest size by collective, backend and number of nodes.

    Raises ArgumentError if two records are of the same number of nodes.
    """
    of_nodes = {int(report.environment["nodes"]): report for report in reports}
    if len(of_nodes) < len(reports):
        given = ", ".join(map(str, sorted(int(report.environment["nodes"]) for report in reports)))
        raise ArgumentError("scaling", "records", "each of another number of nodes", given)
    points = []
    for nodes, report in sorted(of_nodes.items()):
        for name, of_name in grouped(report.rows, "collective").items():
            for size in sorted({*ends(of_name)}):
                for mine in grouped((row for row in of_name if row.size == size), "backend").values():
                    row = fastest(mine, size)
                    what = name, size, row.p50_us, row.wrong, row.label, row.bandwidth
                    points.append(Point(*what, nodes, report.environment["ranks"]))
    return points


def table(points: Sequence[Point]) -> list[str]:
    """A row for each collective, size and backend. It has the median and the bus bandwidth for each number of nodes."""
    columns = [*grouped(points, "nodes", "ranks")]
    heads = (f"{count(nodes, 'node')}, {ranks} ranks" for nodes, ranks in columns)
    text = [f"{'collective':20}{'size':>6}  {'backend':15}" + "".join(f"{head:>28}" for head in heads)]
    for (name, size, backend), mine in sorted(grouped(points, "collective", "size", "backend").items()):
        cells = {(p.nodes, p.ranks): f"{p.p50_us:.1f} us {p.busbw_gbs:7.2f} GB/s" for p in mine}
        row = "".join(f"{cells.get(column, 'N/A'):>28}" for column in columns)
        text.append(f"{name:20}{size_text(size) if size else '':>6}  {backend:15}{row}")
    return text


def draw(points: Sequence[Point], path: Path) -> None:
    """Draw two panels for each collective: the time of the smallest size, and the bus bandwidth of the largest."""
    from matplotlib.ticker import LogLocator, NullFormatter

    looks = style.styles(p.backend for p in points)

    def panel(axes: Axes, points: Sequence[Point], quantity: str) -> dict[str, Any]:
        """Draw this quantity over the number of nodes. Returns the lines by their labels."""
        mine, handles = grouped(points, "backend"), {}
        for backend in (name for name in looks if name in mine):
            values = [getattr(p, quantity) for p in mine[backend]]
            look = looks[backend].line(backend)
            (handles[backend],) = axes.plot([p.nodes for p in mine[backend]], values, **look)
        nodes = sorted({p.nodes for p in points})
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        axes.set_xticks(nodes, [str(n) for n in nodes])
        axes.set_xlabel("nodes")
        return handles

    def fill(points: list[Point], left: Axes, right: Axes) -> dict[str, Any]:
        smallest, largest = ends(points)
        handles = panel(left, [p for p in points if p.size == smallest], "p50_us")
        handles |= panel(right, [p for p in points if p.size == largest], "busbw_gbs")
        left.set_yscale("log")
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.yaxis.set_major_formatter(style.duration)
        left.yaxis.set_minor_formatter(NullFormatter())
        left.set_ylabel("median time" + (f" of {size_text(smallest)} bytes" if smallest else ""))
        right.set_ylim(bottom=0)
        right.set_ylabel("bus bandwidth (GB/s)" + (f" of {size_text(largest)} bytes" if largest else ""))
        return handles

    style.draw(path, grouped(points, "collective"), fill)


def _compare(text: str, records: str) -> int:
    folder, files = Path(text), sorted(Path(text).glob("nodes-*.json"))
    if not records.isdecimal():
        raise ArgumentError("scaling", "arguments", _EXPECTED, f"{text} {records}")
    if not files:
        raise ArgumentError("scaling", "folder", "nodes-*.json in it", text)
    points = gather([load(file) for file in files])
    print("\n".join(table(points)))
    found = {"schema": "mpicoll-scaling/1", "points": [vars(p) for p in points]}
    (folder / "scaling.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(points, folder / "scaling.png")
    if len(files) != int(records):
        names = " ".join(file.name for file in files)
        print(f"mpicoll: {len(files)} of {int(records)} records are there: {names}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    return program("scaling", _EXPECTED, 2, _compare)


if __name__ == "__main__":
    sys.exit(main())
