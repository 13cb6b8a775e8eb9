"""The crossover chart of a comparison: the time over the size, a line for each algorithm, and which is the fastest.

Some algorithms cost the same for some sizes. Their lines lie on each other there, and all of them are visible: each has
dashes where the others have gaps, and they take turns in marking the sizes. A line has its own marker beside its own
colour, so that the chart can also be read in grey.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.analysis.cost.comparison import Comparison, duration
from mpicoll.analysis.palette import Style, styles
from mpicoll.units import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Times = dict[str, list[float]]
"""Seconds of each size, by algorithm."""

CLOSE = 0.04
"""Lines lie on each other if their times differ by less than this part of them."""
WIDTH, MARKER, DASH = 1.8, 5.5, 4.0
"""Points."""
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
    for name, (colour, marker, _) in looks.items():
        times = c.seconds[name]
        style: dict[str, Any] = {"color": colour, "linewidth": WIDTH, "markersize": MARKER}
        for first, last, together in runs(c.seconds, name):
            turn, many = together.index(name), len(together)
            dashes = "solid" if many == 1 else ((many - turn) % many * DASH, (DASH, (many - 1) * DASH))
            axes.plot(c.sizes[first : last + 1], times[first : last + 1], linestyle=dashes, **style)
        for i, n in enumerate(c.sizes):
            together = _together(c.seconds, name, i, i)
            if together and together.index(name) == i % len(together):
                axes.plot(n, times[i], marker, markeredgecolor="white", markeredgewidth=0.5, zorder=3, **style)
        axes.plot([], [], marker + "-", label=name, **style)
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
        band.plot(middle * shift, 0.5, marker, color=colour, markersize=MARKER)
        if fits:
            band.text(middle * 2 ** (0.08 * inch), 0.5, r.algorithm, ha="center", va="center", fontsize=8.5)
    step = -(-len(c.sizes) // 11)
    band.set_xticks(c.sizes[::step], [size_text(n) for n in c.sizes[::step]])
    band.set(xlim=(low, high), ylim=(0, 1), yticks=[])
    band.minorticks_off()
    band.set_ylabel("fastest", rotation=0, ha="right", va="center")
    band.set_xlabel("bytes of the vector")


def runs(seconds: Times, name: str) -> Iterator[tuple[int, int, list[str]]]:
    """The algorithm's line in parts: the first and the last size of each, and whose lines lie on each other there."""
    between = [(i, _together(seconds, name, i, i + 1)) for i in range(len(seconds[name]) - 1)]
    for together, parts in groupby(between, key=lambda part: part[1]):
        numbers = [i for i, _ in parts]
        if together:
            yield numbers[0], numbers[-1] + 1, together


def _together(seconds: Times, name: str, first: int, last: int) -> list[str]:
    """The algorithms that take as long as this one, itself among them, for the two sizes; none if it has no times."""

    def near(other: str) -> bool:
        both = ((seconds[name][i], seconds[other][i]) for i in (first, last))
        return all(abs(mine - its) < CLOSE * min(mine, its) for mine, its in both)

    return [other for other in seconds if near(other)]
