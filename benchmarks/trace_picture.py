"""Draws the end of a trace that MPICOLL_TRACE has left:

    python benchmarks/trace_picture.py trace.json picture.png --last MILLISECONDS --machine WORDS

A band is a rank, and a row in it is a thread: the program, and below it what carries out asynchronous calls. A bar is a
call, and the gaps between bars are the program's own work.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mpicoll.analysis.palette import styles
from mpicoll.bench.plot import SETTINGS, WIDTH, legend, note

BAND = "#f1f3f4"
"""Behind every other rank."""


def draw(trace: dict[str, Any], path: Path, last: float, machine: str) -> None:
    """The last milliseconds of the trace, one band a rank."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = trace["traceEvents"]
    end = max(row["ts"] + row["dur"] for row in rows if row["ph"] == "X")
    start = end - last * 1e3
    calls = [row for row in rows if row["ph"] == "X" and row["ts"] >= start]
    names = {(row["pid"], row["tid"]): row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    bands = sorted({(row["pid"], row["tid"]) for row in calls})
    looks = styles(row["name"] for row in calls)
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, 1), dpi=200, layout="constrained")
        axes = figure.subplots()
        handles: dict[str, Any] = {}
        for row in calls:
            left, width = (row["ts"] - start) / 1e3, row["dur"] / 1e3
            at = bands.index((row["pid"], row["tid"]))
            color = looks[row["name"]].color
            (handles[row["name"]],) = axes.barh(at, width, left=left, height=0.7, color=color, edgecolor=color)
        for at, (rank, _) in enumerate(bands):
            if rank % 2:
                axes.axhspan(at - 0.5, at + 0.5, color=BAND, zorder=0)
        axes.set_yticks(range(len(bands)), [f"rank {rank}: {names[rank, thread]}" for rank, thread in bands])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, last)
        axes.set_xlabel("milliseconds")
        note(figure, machine)
        figure.set_figheight(0.35 * len(bands) + 0.9 + legend(figure, handles))
        figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--last", type=float, default=100.0)
    parser.add_argument("--machine", default="", help="a line below the picture")
    given = parser.parse_args()
    draw(json.loads(given.trace.read_text()), given.picture, given.last, given.machine)
