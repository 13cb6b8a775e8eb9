"""Draws what benchmarks/ddp_step.py measured:

    python benchmarks/ddp_picture.py record.json picture.png

On the left, the time of a step over that of its computation alone. A tick marks the time that computation and
communication would take one after the other. On the right, the part of the communication that is hidden behind the
computation. It is below zero where a step takes longer than both together.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.analysis.palette import FAINT, INK, Style, styles
from mpicoll.bench.plot import SETTINGS, WIDTH, legend, note

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]

TICKS = (-1000, -500, -200, -100, -50, 0, 50, 100)
"""Percent. The axis is linear from -100 to 100 and logarithmic beyond."""
GAP = 1.5
"""Rows between two cases."""


def draw(record: dict[str, Any], path: Path) -> None:
    """A row for each backend of each case. A case is a size of the gradients and of the buckets."""
    import matplotlib
    from matplotlib.figure import Figure

    rows: list[Row] = record["rows"]
    looks = styles(row["backend"] for row in rows)
    cases = list(dict.fromkeys((row["gradient_mb"], row["bucket_mb"]) for row in rows))
    heights = {case: i * (len(looks) + GAP) for i, case in enumerate(cases)}
    last = max(heights.values()) + len(looks)
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, 1), dpi=200, layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(5, 4))
        handles: dict[str, Any] = {}
        for k, (backend, style) in enumerate(looks.items()):
            mine = [row for row in rows if row["backend"] == backend]
            at = [heights[row["gradient_mb"], row["bucket_mb"]] + k for row in mine]
            handles[backend] = _steps(left, at, mine, style)
            _hidden(right, at, mine, style)
        handles["computation, then communication"] = _tick(left, [], [], INK)
        middles = [height + (len(looks) - 1) / 2 for height in heights.values()]
        left.set_yticks(middles, [f"{mb:.3g} MB\nin buckets\nof {bucket:g} MB" for mb, bucket in cases])
        left.set_ylim(last, -1)
        left.set_xlim(left=0)
        left.set_xlabel("time of a step / time of its computation")
        right.set_xscale("symlog", linthresh=100, linscale=1)
        lowest, highest = (end(100 * row["hidden"] for row in rows) for end in (min, max))
        low, high = 1.2 * min(lowest, -50), max(1.2 * highest, 50)
        right.set_xlim(low, high)
        right.set_xticks([tick for tick in TICKS if low <= tick <= high], minor=False)
        right.xaxis.set_major_formatter(lambda percent, _: f"{percent:.0f}")
        right.set_xlabel("communication that is hidden, in percent\n(linear from -100 to 100, else logarithmic)")
        for axes, reference in ((left, 1), (right, 0)):
            axes.axvline(reference, color=FAINT, linewidth=0.8, zorder=1)
            axes.grid(visible=False, axis="y")
            axes.tick_params(axis="y", length=0)
        note(figure, _environment(record["environment"]))
        figure.set_figheight(0.095 * last + 1 + legend(figure, handles))
        figure.savefig(path)


def _steps(axes: Axes, at: list[float], rows: list[Row], style: Style) -> Any:
    steps = [row["step_ms"] / row["computation_ms"] for row in rows]
    in_turn = [1 + row["communication_ms"] / row["computation_ms"] for row in rows]
    axes.hlines(at, in_turn, steps, color=style.color, linewidth=1)
    _tick(axes, in_turn, at, style.color)
    (points,) = axes.plot(steps, at, linestyle="", **style.points("step"))
    return points


def _tick(axes: Axes, x: list[float], y: list[float], color: str) -> Any:
    (ticks,) = axes.plot(x, y, linestyle="", marker="|", markersize=6, markeredgewidth=1.2, color=color)
    return ticks


def _hidden(axes: Axes, at: list[float], rows: list[Row], style: Style) -> None:
    hidden = [100 * row["hidden"] for row in rows]
    axes.hlines(at, 0, hidden, color=style.color, linewidth=1)
    axes.plot(hidden, at, linestyle="", **style.points("hidden"))


def _environment(e: dict[str, Any]) -> str:
    return f"{e['cpu']}, {e['cores']} cores, {e['ranks']} ranks, {e['mpi']}, torch {e['torch']}"


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
