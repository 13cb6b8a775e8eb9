"""The crossover chart of a comparison: the time over the size, a line for each algorithm, and which is the fastest.

Each line has its own colour, marker and dashes, so that the chart can also be read in grey, and where some algorithms
cost the same and their lines lie on each other.
"""

from __future__ import annotations

from math import log2
from pathlib import Path
from typing import TYPE_CHECKING

from mpicoll.analysis.cost.comparison import Comparison
from mpicoll.analysis.palette import Style, styles
from mpicoll.units import duration, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER = 0.066
"""Inches, of the text in the band."""


def draw(c: Comparison, path: Path) -> None:
    """Draw the chart into a file: PNG, PDF or SVG, by its name. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.6), dpi=160, layout="constrained", facecolor="white")
    axes, band = figure.subplots(2, 1, sharex=True, height_ratios=(12, 1))
    looks = styles(c.seconds)
    _lines(axes, c, looks)
    _fastest(band, c, looks)
    axes.set_title(f"{c.collective}, {c.ranks} ranks on {c.machine.name}: the model", loc="left", fontweight="bold")
    handles, _ = axes.get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=10)
    figure.savefig(path)


def _lines(axes: Axes, c: Comparison, looks: dict[str, Style]) -> None:
    for i, (name, look) in enumerate(looks.items()):  # of lines that lie on each other, the fastest is the first
        axes.plot(c.sizes, c.seconds[name], zorder=3 - i / len(looks), **look.line(name))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda t, _: duration(t))
    axes.set_ylabel("time until the last rank is done")
    axes.grid(color="#e6e8eb", linewidth=0.7)


def _fastest(band: Axes, c: Comparison, looks: dict[str, Style]) -> None:
    """Show the fastest for each size: its colour, its marker, and its name where there is room."""
    low, high = c.sizes[0] / 2**0.6, c.sizes[-1] * 2**0.6
    inch = log2(high / low) / 7.0
    for r in c.ranges:
        colour, marker, _ = looks[r.algorithm]
        edges = (r.first / 2**0.5, r.last * 2**0.5)
        band.axvspan(*edges, color=colour, alpha=0.25, linewidth=0)
        middle = (edges[0] * edges[1]) ** 0.5
        wide = LETTER * len(r.algorithm) * inch
        fits = log2(edges[1] / edges[0]) > wide + 0.35 * inch
        shift = 2 ** (-(wide / 2 + 0.08 * inch) * fits)
        band.plot(middle * shift, 0.5, marker, color=colour, markersize=5)
        if fits:
            band.text(middle * 2 ** (0.08 * inch), 0.5, r.algorithm, ha="center", va="center", fontsize=8.5)
    step = -(-len(c.sizes) // 11)
    band.set_xticks(c.sizes[::step], [size_text(n) for n in c.sizes[::step]])
    band.set(xlim=(low, high), ylim=(0, 1), yticks=[])
    band.minorticks_off()
    band.set_ylabel("fastest", rotation=0, ha="right", va="center")
    band.set_xlabel("bytes of the vector")
