"""``python -m mpicoll.bench.scaling FOLDER N``: compares N benchmarks, each on another number of nodes.

It reads the records ``nodes-*.json`` in the folder, prints a table, and writes ``scaling.json`` and ``scaling.png``
there. It loads neither MPI nor torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpicoll.bench import plot
from mpicoll.bench.records import Report, Row, columns, grouped, load, program
from mpicoll.errors import ArgumentError
from mpicoll.units import count, size_text


@dataclass(frozen=True, kw_only=True)
class Point(Row):
    """The faster placement of one size on one backend and so many nodes."""

    nodes: int
    ranks: int


def gather(reports: Sequence[Report]) -> list[Point]:
    """The smallest and the largest size by collective, backend and number of nodes. Raises ArgumentError if two records
    are of the same number of nodes."""
    by_nodes = {report.environment["nodes"]: report for report in reports}
    if len(by_nodes) < len(reports):
        given = ", ".join(map(str, sorted(report.environment["nodes"] for report in reports)))
        raise ArgumentError("scaling", "records", "each of another number of nodes", given)
    points = []
    for nodes, report in sorted(by_nodes.items()):
        for of_collective in grouped(report.rows, "collective").values():
            sizes = {row.size for row in of_collective}
            for (size, _), mine in grouped(of_collective, "size", "label").items():
                if size in (min(sizes), max(sizes)):
                    faster = min(mine, key=lambda row: row.p50_us)
                    points.append(Point(**vars(faster), nodes=nodes, ranks=report.environment["ranks"]))
    return points


def table(points: Sequence[Point]) -> list[str]:
    """A row for each collective, size and backend. It has the median and the bus bandwidth for each number of nodes."""
    places = [*grouped(points, "nodes", "ranks")]
    heads = (f"{count(nodes, 'node')}, {ranks} ranks" for nodes, ranks in places)
    text = [f"{'collective':20}{'size':>6}  {'backend':15}" + "".join(f"{head:>28}" for head in heads)]
    for (name, size, backend), mine in sorted(grouped(points, "collective", "size", "label").items()):
        cells = {(p.nodes, p.ranks): f"{p.p50_us:.1f} us {p.bandwidth:7.2f} GB/s" for p in mine}
        row = "".join(f"{cells.get(place, 'N/A'):>28}" for place in places)
        text.append(f"{name:20}{size_text(size) if size else '':>6}  {backend:15}{row}")
    return text


def draw(points: Sequence[Point], path: Path) -> None:
    """Draw two panels for each collective: the time of the smallest size, and the bus bandwidth of the largest."""

    def panel(points: Sequence[Point], what: str, y: Callable[[Point], float]) -> plot.Panel:
        of_size = f" of {size_text(points[0].size)} bytes" if points[0].size else ""
        lines = {name: [(p.nodes, y(p)) for p in mine] for name, mine in grouped(points, "label").items()}
        return plot.Panel("nodes", what + of_size, str, lines)

    panels = {}
    for name, mine in grouped(points, "collective").items():
        of_size = grouped(mine, "size")
        times = panel(of_size[min(of_size)], "median time", lambda p: p.p50_us / 1e6)
        panels[name] = times, panel(of_size[max(of_size)], "bus bandwidth (GB/s)", lambda p: p.bandwidth)
    plot.draw_panels(path, panels)


def compare(folder: Path, records: int) -> int:
    files = sorted(folder.glob("nodes-*.json"))
    if not files:
        raise ArgumentError("scaling", "folder", "nodes-*.json in it", str(folder))
    points = gather([load(file) for file in files])
    print("\n".join(table(points)))
    found = {"schema": "mpicoll-scaling/1", "points": [columns(point) for point in points]}
    (folder / "scaling.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(points, folder / "scaling.png")
    if len(files) != records:
        names = " ".join(file.name for file in files)
        print(f"mpicoll: {len(files)} of {records} records are there: {names}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    program(__doc__, compare, folder=Path, records=int)
