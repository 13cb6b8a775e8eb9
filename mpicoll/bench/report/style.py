"""How pictures of measurements look: a colour, a marker and a dash pattern for each line, settings for Matplotlib, and
two panels for each collective.

No two lines have the same colour. They also differ in marker and dashes, so that a print without colours can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from colorsys import hls_to_rgb
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FAINT", "REFERENCE", "SETTINGS", "WIDTH", "Style", "draw", "duration", "legend", "note", "styles"]

T = TypeVar("T")

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
    """So many hues, evenly spaced, dark and lighter ones in turns."""
    found = []
    for i in range(n):
        rgb = hls_to_rgb(i / n, (0.28, 0.52, 0.4)[i % 3], 0.75)
        found.append("#" + "".join(f"{round(255 * part):02x}" for part in rgb))
    return found


def draw(
    path: Path, parts: dict[str, list[T]], fill: Callable[[list[T], Axes, Axes], dict[str, Any]], source: str = ""
) -> None:
    """Draw two panels side by side for each part, by its title. ``fill`` draws a part and returns its lines by their
    labels. Below all panels stands the ``source`` of the data."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, 0.6), dpi=200, layout="constrained")
        if source:
            note(figure, source)
        if parts:
            handles: dict[str, Any] = {}
            panels = figure.subplots(len(parts), 2, squeeze=False)
            for (title, part), (left, right) in zip(parts.items(), panels, strict=True):
                handles |= fill(part, left, right)
                left.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=8)
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


def duration(microseconds: float, _: object) -> str:
    """A time for an axis."""
    unit, scale = next((u, s) for u, s in (("s", 1e6), ("ms", 1e3), ("µs", 1)) if microseconds >= s or u == "µs")
    return f"{microseconds / scale:g} {unit}"
