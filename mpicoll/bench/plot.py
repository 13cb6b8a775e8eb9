"""The picture: time and bus bandwidth over size, with a line for each backend."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpicoll.analysis.palette import FAINT, Style, styles
from mpicoll.bench.records import Report, Row, grouped
from mpicoll.units import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.4  # inches. A page of A4 or letter paper holds a picture of this width nearly unreduced.
SETTINGS: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a6",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8eb",
    "grid.linewidth": 0.7,
    "xtick.color": "#3c4043",
    "ytick.color": "#3c4043",
    "ytick.minor.size": 0,
    "xtick.minor.size": 0,
    "svg.fonttype": "none",
}


class Panel(NamedTuple):
    """Figures over sizes or numbers of nodes: points (x, y) for each line, the band (x, low, high) around some, and
    grounds (name of a line, from x, to x) that have a line's colour. Times are in seconds."""

    x: str
    y: str
    ticks: Callable[[int], str]
    lines: Mapping[str, Sequence[tuple[int, float]]]
    bands: Mapping[str, Sequence[tuple[int, float, float]]] = {}
    grounds: Sequence[tuple[str, float, float]] = ()

    def draw(self, axes: Axes, looks: Mapping[str, Style]) -> dict[str, Any]:
        """Returns the lines by their names."""
        handles = {}
        for name, *edges in self.grounds:
            axes.axvspan(*edges, color=looks[name].color, alpha=0.13, linewidth=0)
        for name, band in self.bands.items():
            x, low, high = zip(*band, strict=True)
            axes.fill_between(x, low, high, color=looks[name].color, alpha=0.13, linewidth=0)
        for i, (name, points) in enumerate(self.lines.items()):  # of lines that lie on each other, the first is seen
            (handles[name],) = axes.plot(*zip(*points, strict=True), zorder=3 - i / 100, **looks[name].line(name))
        at = sorted({x for points in self.lines.values() for x, _ in points})
        step = -(-len(at) // 7)
        shown = at[::step]
        if (len(at) - 1) % step * 2 > step:
            shown.append(at[-1])
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        axes.set_xticks(shown, [self.ticks(x) for x in shown])
        axes.set(xlabel=self.x, ylabel=self.y)
        return handles


def draw_panels(path: Path, parts: Mapping[str, Sequence[Panel]], source: str = "") -> None:
    """Draw each part's panel of times, and beside it those of bandwidths. Below all stands the ``source``."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    looks = styles(name for times, *_ in parts.values() for name in times.lines)
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, 0.6), dpi=200, layout="constrained")
        if source:
            note(figure, source)
        if parts:
            handles: dict[str, Any] = {}
            panels = figure.subplots(len(parts), max(map(len, parts.values())), squeeze=False)
            for (title, (times, *bandwidths)), (left, *right) in zip(parts.items(), panels, strict=True):
                handles |= times.draw(left, looks)
                for panel, axes in zip(bandwidths, right, strict=True):
                    panel.draw(axes, looks)
                    axes.set_ylim(bottom=0)
                left.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=8)
                left.set_yscale("log")
                low, high = left.get_ylim()
                left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 2e3 * low else (1,)))
                left.yaxis.set_major_formatter(EngFormatter("s"))
                left.yaxis.set_minor_formatter(NullFormatter())
            figure.set_figheight(2.9 * len(parts) + 0.4 * bool(source) + legend(figure, handles))
        figure.savefig(path)


def legend(figure: Figure, handles: dict[str, Any]) -> float:
    """Put the legend above all panels, where it hides nothing. Returns its height in inches."""
    if not handles:
        return 0.0
    longest = max(map(len, handles))
    columns = max(1, min(len(handles), int(WIDTH / (0.55 + 0.068 * longest))))
    look = {"frameon": False, "handlelength": 2.8, "columnspacing": 1.2}
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=columns, **look)
    return 0.2 * -(-len(handles) // columns)


def note(figure: Figure, text: str) -> None:
    """Write below all panels where the data come from."""
    figure.supxlabel(text, x=0.01, ha="left", fontsize=7.5, color=FAINT)


def draw(report: Report, path: Path) -> None:
    """Draw two panels for each collective that moves data, in the placement that is usual for it."""
    e = report.environment
    machine = " · ".join((f"{e['cpu']}, {e['cores']} cores", *dict.fromkeys(e["gpus"]), e["mpi"]))
    versions = "".join(f" · {name} {e[name]}" for name in ("mpi4py", "torch", "mpicoll") if e[name])
    usual = grouped((row for row in report.rows if row.size and row.is_usual), "collective")
    panels = {}
    for name, rows in usual.items():
        op = f" {rows[0].redop}" if rows[0].redop else ""
        title = f"{name}, {rows[0].type}{op}, {e['ranks']} ranks, {rows[0].placement.replace('-', ' ')}"
        panels[title] = _panels(rows)
    draw_panels(path, panels, textwrap.fill(machine + versions, 130))


def _panels(rows: Sequence[Row]) -> tuple[Panel, Panel]:
    lines = grouped(rows, "label")
    times = {name: [(row.size, row.p50_us / 1e6) for row in mine] for name, mine in lines.items()}
    bands = {n: [(row.size, *np.percentile(row.times_us, (10, 90)) / 1e6) for row in rs] for n, rs in lines.items()}
    bandwidths = {name: [(row.size, row.bandwidth) for row in mine] for name, mine in lines.items()}
    return (
        Panel("size (bytes)", "time: median, and band from p10 to p90", size_text, times, bands),
        Panel("size (bytes)", "bus bandwidth (GB/s), of the median", size_text, bandwidths),
    )
