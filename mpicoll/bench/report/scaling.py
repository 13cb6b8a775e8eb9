"""``python -m mpicoll.bench.report.scaling FOLDER N``: compares N benchmarks, each on another number of nodes.

It reads the records ``nodes-*.json`` in the folder, prints a table, and writes ``scaling.json`` and ``scaling.png``
there. It loads neither MPI nor torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.bench.report.record import Record, label, load
from mpicoll.bench.report.style import SETTINGS, WIDTH, Style, duration, legend, styles
from mpicoll.bench.report.summary import fastest
from mpicoll.errors import ArgumentError
from mpicoll.units import count, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "gather", "main", "table"]

Point = dict[str, Any]


def gather(records: list[Record]) -> list[Point]:
    """The smallest and the largest size by collective, backend and number of nodes, each in its faster placement.

    Raises ArgumentError if two records are of the same number of nodes.
    """
    of_records = sorted(int(record["environment"]["nodes"]) for record in records)
    if len(set(of_records)) < len(of_records):
        given = ", ".join(map(str, of_records))
        raise ArgumentError("scaling", "records", "each of another number of nodes", given)
    points = []
    for record in sorted(records, key=lambda r: int(r["environment"]["nodes"])):
        e = record["environment"]
        for name in dict.fromkeys(row["collective"] for row in record["rows"]):
            of_name = [row for row in record["rows"] if row["collective"] == name]
            for size in sorted({min(row["size"] for row in of_name), max(row["size"] for row in of_name)}):
                for backend in dict.fromkeys(row["backend"] for row in of_name if row["size"] == size):
                    row = fastest([row for row in of_name if row["backend"] == backend], size)
                    what = {key: row[key] for key in ("collective", "size", "p50_us", "wrong")}
                    bandwidth = row["busbw_gbs"] * row["time_us"] / row["p50_us"]  # of the median, not of the mean
                    points.append(
                        {
                            **what,
                            "backend": label(row),
                            "busbw_gbs": bandwidth,
                            "nodes": e["nodes"],
                            "ranks": e["ranks"],
                        }
                    )
    return points


def table(points: list[Point]) -> list[str]:
    """A row for each collective, size and backend. It has the median and the bus bandwidth for each number of nodes."""
    columns = list(dict.fromkeys((p["nodes"], p["ranks"]) for p in points))
    cells = {(p["collective"], p["size"], p["backend"], p["nodes"], p["ranks"]): p for p in points}
    heads = (f"{count(nodes, 'node')}, {ranks} ranks" for nodes, ranks in columns)
    text = [f"{'collective':20}{'size':>6}  {'backend':15}" + "".join(f"{head:>28}" for head in heads)]
    for name, size, backend in sorted({key[:3] for key in cells}):
        found = (cells.get((name, size, backend, *column)) for column in columns)
        row = "".join(f"{_cell(p) if p else 'N/A':>28}" for p in found)
        text.append(f"{name:20}{size_text(size) if size else '':>6}  {backend:15}{row}")
    return text


def _cell(p: Point) -> str:
    return f"{p['p50_us']:.1f} us {p['busbw_gbs']:7.2f} GB/s"


def draw(points: list[Point], path: Path) -> None:
    """Draw two panels for each collective: the time of the smallest size, and the bus bandwidth of the largest."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    names = list(dict.fromkeys(p["collective"] for p in points))
    looks = styles(p["backend"] for p in points)
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, 1), dpi=200, layout="constrained")
        handles: dict[str, Any] = {}
        for name, (left, right) in zip(names, figure.subplots(len(names), 2, squeeze=False), strict=True):
            of_name = [p for p in points if p["collective"] == name]
            smallest, largest = (size(p["size"] for p in of_name) for size in (min, max))
            handles |= _panel(left, [p for p in of_name if p["size"] == smallest], "p50_us", looks)
            handles |= _panel(right, [p for p in of_name if p["size"] == largest], "busbw_gbs", looks)
            left.set_yscale("log")
            left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            left.yaxis.set_major_formatter(duration)
            left.yaxis.set_minor_formatter(NullFormatter())
            left.set_ylabel("median time" + (f" of {size_text(smallest)} bytes" if smallest else ""))
            right.set_ylim(bottom=0)
            right.set_ylabel("bus bandwidth (GB/s)" + (f" of {size_text(largest)} bytes" if largest else ""))
            left.set_title(name, loc="left", fontsize=10, fontweight="bold", pad=8)
        figure.set_figheight(2.9 * len(names) + legend(figure, handles))
        figure.savefig(path)


def _panel(axes: Axes, points: list[Point], quantity: str, looks: dict[str, Style]) -> dict[str, Any]:
    """Draw this quantity over the number of nodes. Returns the lines by their labels."""
    handles = {}
    for backend, style in looks.items():
        mine = [p for p in points if p["backend"] == backend]
        if mine:
            at = [p["nodes"] for p in mine]
            (handles[backend],) = axes.plot(at, [p[quantity] for p in mine], **style.line(backend))
    nodes = sorted({p["nodes"] for p in points})
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    axes.set_xticks(nodes, [str(n) for n in nodes])
    axes.set_xlabel("nodes")
    return handles


def main() -> int:
    try:
        if len(sys.argv) != 3 or not sys.argv[2].isdecimal():
            given = " ".join(sys.argv[1:]) or "none"
            raise ArgumentError("scaling", "arguments", "a folder and how many records it should hold", given)
        folder, expected = Path(sys.argv[1]), int(sys.argv[2])
        files = sorted(folder.glob("nodes-*.json"))
        if not files:
            raise ArgumentError("scaling", "folder", "nodes-*.json in it", str(folder))
        points = gather([load(file) for file in files])
    except ArgumentError as e:
        print(f"mpicoll: {e}", file=sys.stderr)
        return 2
    print("\n".join(table(points)))
    (folder / "scaling.json").write_text(json.dumps({"schema": "mpicoll-scaling/1", "points": points}, indent=1) + "\n")
    draw(points, folder / "scaling.png")
    if len(files) != expected:
        print(
            f"mpicoll: {len(files)} of {expected} records are there: {' '.join(f.name for f in files)}", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
