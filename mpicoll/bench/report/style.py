"""How pictures of measurements look: a colour, a marker and a dash pattern for each line, settings for Matplotlib, and
two panels for each collective: times on the left, and bandwidths on the right.

No two lines have the same colour. They also differ in marker and dashes, so that a print without colours can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from colorsys import hls_to_rgb
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpicoll.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = (".png", ".pdf", ".svg")

COLORS = (
    *("#0b3c6f", "#e08214", "#1b9e77", "#b2182b", "#7570b3"),
    *("#666666", "#56b4e9", "#7a4a12", "#d64fa0", "#9aa800"),
)
MARKERS = "os^DvPX<>*hp"
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)), (0, (7, 2)))

FAINT = "#5f6368"
"""For what stands beside the data."""
REFERENCE = "#202124"
"""For what the data are compared with."""
WIDTH = 7.4
"""Inches. A page of A4 or letter paper holds a picture of this width nearly unreduced."""
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


FLOOR = "memory copy"
"""The line below all times."""


class Style(NamedTuple):
    """How one line is drawn."""

    color: str
    marker: str
    dashes: Any

    def line(self, label: str) -> dict[str, Any]:
        """The line's properties, as Matplotlib names them."""
        return {"linestyle": self.dashes, "linewidth": 1.5} | self.points(label)

    def points(self, label: str) -> dict[str, Any]:
        """The properties of its markers alone."""
        return {
            "color": self.color, "marker": self.marker, "label": label,
            "markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.5,
        }  # fmt: skip


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each of the names, each in a colour of its own."""
    distinct = list(dict.fromkeys(names))
    colors = COLORS if len(distinct) <= len(COLORS) else _hues(len(distinct))
    return {
        name: Style(color, MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])
        for i, (name, color) in enumerate(zip(distinct, colors, strict=False))
    }


def _hues(n: int) -> list[str]:
    """As many hues as asked for, evenly spaced, dark and lighter ones in turns."""
    found = []
    for i in range(n):
        rgb = hls_to_rgb(i / n, (0.28, 0.52, 0.4)[i % 3], 0.75)
        found.append("#" + "".join(f"{round(255 * part):02x}" for part in rgb))
    return found


def check_drawable(operation: str, file: Path) -> None:
    """Raise ArgumentError if no picture can be drawn into a file of this name, which --plot gave."""
    if find_spec("matplotlib") is None:
        expected = "matplotlib to be installed (pip install matplotlib)"
        raise ArgumentError(operation, "--plot", expected, "an environment without it")
    if file.suffix.lower() not in PICTURES:
        raise ArgumentError(operation, "--plot", f"a name that ends in {', '.join(PICTURES)}", repr(str(file)))


class Panel(NamedTuple):
    """Figures over sizes or numbers of nodes: points (x, y) for each line, and the band (x, low, high) around some.
    Times are in seconds."""

    x: str
    y: str
    ticks: Callable[[int], str]
    lines: Mapping[str, Sequence[tuple[int, float]]]
    bands: Mapping[str, Sequence[tuple[int, float, float]]] = {}

    def draw(self, axes: Axes, looks: Mapping[str, Style]) -> dict[str, Any]:
        """Returns the lines by their names."""
        handles = {}
        for name, band in self.bands.items():
            x, low, high = zip(*band, strict=True)
            axes.fill_between(x, low, high, color=looks[name].color, alpha=0.13, linewidth=0)
        for name, points in self.lines.items():
            (handles[name],) = axes.plot(*zip(*points, strict=True), **looks[name].line(name))
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


def draw(path: Path, parts: Mapping[str, tuple[Panel, Panel]], source: str = "") -> None:
    """Draw the panels of times and of bandwidths of each part, by its title. Below all stands the ``source``."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    names = (name for times, _ in parts.values() for name in times.lines if name != FLOOR)
    looks = styles(names) | {FLOOR: Style(REFERENCE, "", "-")}
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, 0.6), dpi=200, layout="constrained")
        if source:
            note(figure, source)
        if parts:
            handles: dict[str, Any] = {}
            panels = figure.subplots(len(parts), 2, squeeze=False)
            for (title, (times, bandwidths)), (left, right) in zip(parts.items(), panels, strict=True):
                handles |= times.draw(left, looks)
                bandwidths.draw(right, looks)
                left.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=8)
                left.set_yscale("log")
                low, high = left.get_ylim()
                left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 2e3 * low else (1,)))
                left.yaxis.set_major_formatter(EngFormatter("s"))
                left.yaxis.set_minor_formatter(NullFormatter())
                right.set_ylim(bottom=0)
            figure.set_figheight(2.9 * len(parts) + 0.4 * bool(source) + legend(figure, handles))
        figure.savefig(path)


def legend(figure: Figure, handles: dict[str, Any]) -> float:
    """Put the legend above all panels, where it hides nothing. Returns its height in inches."""
    longest = max(map(len, handles))
    columns = max(1, min(len(handles), int(WIDTH / (0.55 + 0.068 * longest))))
    look = {"frameon": False, "handlelength": 2.8, "columnspacing": 1.2}
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=columns, **look)
    return 0.2 * -(-len(handles) // columns)


def note(figure: Figure, text: str) -> None:
    """Write below all panels where the data come from."""
    figure.supxlabel(text, x=0.01, ha="left", fontsize=7.5, color=FAINT)
