"""A sheet to draw on, which is saved as SVG or PNG. Positions are inches from its upper left corner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from mpicoll.analysis.palette import FAINT, FAULT, INK, LINE, PLUS
from mpicoll.errors import ScheduleError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path as MatplotlibPath

Point = tuple[float, float]

MOST_PIXELS = 8000  # the most pixels of a PNG, across or down

_LOOKS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "svg.fonttype": "none",
    "svg.hashsalt": "mpicoll",
}
LEAST_WIDE = 7.5  # the least width of a drawing with a fault, whose lines are long
LINE_HEIGHT, LETTER = 0.16, 0.061  # of the lines about the fault
FIRST_LINE = 0.46


class Canvas:
    """Collects polygons and lines, and draws all that look alike as one path. This keeps an SVG small."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.fills: dict[str, list[Sequence[Point]]] = defaultdict(list)  # the polygons of each colour
        self.strokes: dict[tuple[str, float, str], list[Sequence[Point]]] = defaultdict(list)
        """The lines of each colour, width in points, and dashes."""

    def text(self, x: float, y: float, text: str, size: float, colour: str = INK, **more: Any) -> None:
        if text:
            baseline = y + 0.36 * size / 72  # not from the metrics of a font, which differ between machines
            self.axes.text(x, baseline, text, size=size, color=colour, va="baseline", **{"ha": "center"} | more)

    def label(self, x: float, y: float, text: str, size: float) -> None:
        """Write a text on a white ground, in front of the lines that cross it. ``x`` is its left end."""
        if text:
            wide, tall = 0.0091 * size * len(text), 0.0145 * size
            self.fills["white"].append(box(x - 0.01, y - tall / 2, wide + 0.02, tall))
            self.text(x, y, text, size, FAINT, ha="left", zorder=6)

    def flush(self) -> None:
        from matplotlib.patches import PathPatch

        for colour, polygons in self.fills.items():
            front: float = {"white": 4, LINE: 3, FAULT: 3.5}.get(colour, 1)
            self.axes.add_patch(PathPatch(_path(polygons), facecolor=colour, edgecolor="none", zorder=front))
        for (colour, width, dashes), drawn in self.strokes.items():
            front = {PLUS: 5, FAULT: 3.5}.get(colour, 2 + width / 10)
            style: Any = {"facecolor": "none", "edgecolor": colour, "linewidth": width, "linestyle": dashes}
            self.axes.add_patch(PathPatch(_path(drawn), zorder=front, joinstyle="miter", **style))


def save(width: float, height: float, draw: Callable[[Canvas], object], file: Path) -> None:
    """Write what ``draw`` draws as SVG or PNG, by the ending of the file. The same drawing gives the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_LOOKS):
        figure = Figure(figsize=(width, height), facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        canvas = Canvas(axes)
        draw(canvas)
        canvas.flush()
        # The file holds neither a date nor a version, so that the same drawing gives the same file.
        metadata = {"Date": None, "Creator": None} if file.suffix.lower() == ".svg" else {"Software": None}
        figure.savefig(file, dpi=min(160, MOST_PIXELS / max(width, height)), metadata=metadata)


def box(x: float, y: float, wide: float, tall: float) -> list[Point]:
    return [(x, y), (x + wide, y), (x + wide, y + tall), (x, y + tall), (x, y)]


def _path(drawn: Sequence[Sequence[Point]]) -> MatplotlibPath:
    """One path of several pieces. A piece that ends where it begins is closed."""
    from matplotlib.path import Path as MatplotlibPath

    pieces = (MatplotlibPath(points, closed=points[0] == points[-1]) for points in drawn)
    return MatplotlibPath.make_compound_path(*pieces)


def caption_height(fault: ScheduleError | None, width: float) -> float:
    return LINE_HEIGHT * len(_lines(fault, width))


def draw_caption(on: Canvas, name: str, of: str, fault: ScheduleError | None, edge: float, width: float) -> None:
    """Draw the title, and the lines about the fault. The first line, which says what is wrong, has its colour."""
    on.text(edge, 0.22, name, 10.5, weight="bold", ha="left")
    on.text(edge + 0.14 + 0.089 * len(name), 0.22, of, 8.5, FAINT, ha="left")
    for number, (text, first) in enumerate(_lines(fault, width)):
        on.text(edge, FIRST_LINE + number * LINE_HEIGHT, text, 8, FAULT if first else INK, ha="left")


def _lines(fault: ScheduleError | None, width: float) -> list[tuple[str, bool]]:
    """The lines, and for each whether it belongs to the first one of the error."""
    lines = enumerate(str(fault).splitlines() if fault else ())
    letters = int(width / LETTER)
    return [(part, n == 0) for n, line in lines for part in wrap(line.strip(), letters, subsequent_indent="    ")]
