"""The picture: latency and bus bandwidth over size, a line for each backend. Lines differ in more than colour."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpicoll.bench.figures import Measurement, Report
from mpicoll.bench.rules import Rule
from mpicoll.units import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LOOKS", "STYLES", "Style", "draw", "duration"]


class Style(NamedTuple):
    color: str
    marker: str
    dashes: Any

    def look(self, label: str) -> dict[str, Any]:
        """A line's properties."""
        return {
            "color": self.color, "marker": self.marker, "linestyle": self.dashes, "label": label,
            "linewidth": 1.6, "markersize": 4.5, "markeredgecolor": "white", "markeredgewidth": 0.6,
        }  # fmt: skip


# Colours that differ in lightness, too: they stay apart in greyscale and for the colour-blind.
STYLES = (
    Style("#0b3c6f", "o", "-"),
    Style("#e08214", "s", (0, (5, 1.5))),
    Style("#1b9e77", "^", (0, (1, 1))),
    Style("#b2182b", "D", (0, (4, 1.2, 1, 1.2))),
    Style("#7570b3", "v", (0, (7, 2))),
    Style("#666666", "P", (0, (2, 1, 1, 1, 1, 1))),
)
_PLACES = {"in": "in place", "out": "out of place"}
_FAINT = "#5f6368"
LOOKS: Any = {
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


def draw(report: Report, path: Path) -> None:
    """Two panels for each collective that moves data, in the placement that is usual for it."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rules = [rule for rule in report.rules if rule.sized]
    styles = dict(zip(report.backends, cycle(STYLES), strict=False))
    with matplotlib.rc_context(LOOKS):
        height = 3.3 * max(1, len(rules)) + 0.75
        above_footer = (0, 0.3 / height, 1, 1 - 0.3 / height)
        layout = ConstrainedLayoutEngine(rect=above_footer, w_pad=0.1, h_pad=0.12)
        figure = Figure(figsize=(9.2, height), dpi=160, layout=layout)
        if rules:
            panels = figure.subplots(len(rules), 2, squeeze=False)
            for rule, (left, right) in zip(rules, panels, strict=True):
                _panels(report, rule, styles, left, right)
        figure.text(0.012, 0.1 / height, _environment(report), color=_FAINT, fontsize=7.5)
        figure.savefig(path)


def _panels(report: Report, rule: Rule, styles: dict[str, Style], left: Axes, right: Axes) -> None:
    usual = rule.placements[0]
    sizes: set[int] = set()
    for backend, style in styles.items():
        lines = (line for line in report.lines if (line.backend, line.case.rule) == (backend, rule))
        found = [line.by[usual] for line in lines if usual in line.by]
        if not found:
            continue
        at = [m.case.bytes for m in found]
        sizes.update(at)
        look = style.look(backend)
        left.fill_between(
            at, [m.percentile(10) for m in found], [m.percentile(90) for m in found],
            color=style.color, alpha=0.13, linewidth=0,
        )  # fmt: skip
        left.plot(at, [m.p50 for m in found], **look)
        right.plot(at, [_bandwidth(m) for m in found], **look)
    for axes in (left, right):
        _size_axis(axes, sorted(sizes))
    left.set_yscale("log")
    left.yaxis.set_major_formatter(duration)
    left.set_ylabel("time: median, and band from p10 to p90")
    right.set_ylim(bottom=0)
    right.set_ylabel("bus bandwidth (GB/s), of the median")
    left.set_title(_title(report, rule), loc="left", fontsize=10.5, fontweight="bold", pad=10)
    left.legend(frameon=False, handlelength=3.4, loc="best")


def _bandwidth(m: Measurement) -> float:
    return m.busbw * m.time / m.p50


def _size_axis(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    step = -(-len(sizes) // 7)
    shown = sizes[::step]
    if (len(sizes) - 1) % step * 2 > step:
        shown.append(sizes[-1])
    axes.set_xticks(shown, [size_text(s) for s in shown])
    axes.set_xlabel("size (bytes)")


def duration(microseconds: float, _: object) -> str:
    unit, scale = next((u, s) for u, s in (("s", 1e6), ("ms", 1e3), ("µs", 1)) if microseconds >= s or u == "µs")
    return f"{microseconds / scale:g} {unit}"


def _title(report: Report, rule: Rule) -> str:
    case = next(line.case for line in report.lines if line.case.rule == rule)
    op = f" {case.op}" if rule.collective.reduces else ""
    return f"{rule.name}, {case.dtype}{op}, {case.ranks} ranks, {_PLACES[case.placement]}"


def _environment(report: Report) -> str:
    e = report.environment
    gpus = "".join(f" · {gpu}" for gpu in dict.fromkeys(e["gpus"]))
    torch = f" · torch {e['torch']}" if e["torch"] else ""
    return f"{e['cpu']}, {e['cores']} cores{gpus} · {e['mpi']} · mpi4py {e['mpi4py']}{torch} · mpicoll {e['mpicoll']}"
