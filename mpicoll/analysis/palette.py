"""The colours of all pictures, and how lines differ: also in a print without colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from colorsys import hls_to_rgb
from typing import Any, NamedTuple

OF_LINES = (
    *("#0b3c6f", "#e08214", "#1b9e77", "#b2182b", "#7570b3"),
    *("#666666", "#56b4e9", "#7a4a12", "#d64fa0", "#9aa800"),
)
# They are light, so that black text is legible on each of them. Within that limit they differ as much as they can.
OF_CELLS = (
    *("#8ecae6", "#ffbf80", "#9bd6a3", "#f49a93", "#c9b8f2", "#ecd678", "#f3abd3", "#bfb6a8"),
    *("#5fb3ce", "#e39b4c", "#69bd76", "#dd7d79", "#a58fdc", "#c9b146", "#d97fb3", "#969ba6"),
)
MARKERS = "os^DvPX<>*hp"
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)), (0, (7, 2)))

INK, FAINT, LINE, PLUS, EMPTY, GRID = "#1f2937", "#6b7280", "#475569", "#b91c1c", "#f8fafc", "#d5dae1"
"""Of drawings."""
FAULT = "#e00028"
"""The colour of what is wrong."""


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
    colors = OF_LINES if len(distinct) <= len(OF_LINES) else _hues(len(distinct), (0.28, 0.52, 0.4))
    return {
        name: Style(color, MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])
        for i, (name, color) in enumerate(zip(distinct, colors, strict=False))
    }


def of_cell(number: int, of: int) -> str:
    """One of ``of`` colours, which all differ."""
    return OF_CELLS[number] if of <= len(OF_CELLS) else _hues(of, (0.74,))[number]


def _hues(n: int, lights: Sequence[float]) -> list[str]:
    """As many hues as asked for, evenly spaced, dark and lighter ones in turns."""
    every = (hls_to_rgb(i / n, lights[i % len(lights)], 0.75) for i in range(n))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in every]
