"""A recording as a picture: a band for each rank, and in it what the program and asynchronous calls did when."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from mpicoll.analysis.palette import styles
from mpicoll.bench.plot import SETTINGS, WIDTH, legend
from mpicoll.profile.recording import ASYNCHRONOUS, Recording, Span

_BAND = "#f1f3f4"
"""Behind every other rank."""
_EXPOSED, _HIDDEN = 0.7, 0.25
"""The heights of bars: while the program is in the call, and while it goes on."""


def draw(recording: Recording, file: Path, last: float | None) -> None:
    """Draw it, or its last milliseconds alone. The name of the file chooses the format."""
    import matplotlib
    from matplotlib.figure import Figure

    end = max(until for _, until in recording.spans.values())
    begin = min(since for since, _ in recording.spans.values()) if last is None else end - last * 1e3
    # A row is a rank's program, or its thread of asynchronous calls. The bars of a call in it have one height.
    alike: defaultdict[tuple[str, tuple[int, bool], float], list[Span]] = defaultdict(list)
    for call in recording.calls:
        if call.complete >= begin:
            asynchronous = call.thread == ASYNCHRONOUS
            alike[call.kind, (call.rank, asynchronous), _HIDDEN].append(call.under_way)
            if asynchronous:
                alike[call.kind, (call.rank, True), _EXPOSED].append(call.method)
            alike[call.kind, (call.rank, False), _EXPOSED] += call.exposed
    rows = sorted({row for _, row, _ in alike})
    looks = styles(kind for kind, _, _ in alike)
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, 1), dpi=200, layout="constrained")
        axes = figure.subplots()
        handles: dict[str, Any] = {}
        for (kind, row, height), bars in alike.items():
            color, where = looks[kind].color, (rows.index(row) - height / 2, height)
            shown = [((since - begin) / 1e3, (until - since) / 1e3) for since, until in bars]
            handles[kind] = axes.broken_barh(shown, where, facecolors=color, edgecolors=color)
        for at, (rank, _) in enumerate(rows):
            if rank % 2:
                axes.axhspan(at - 0.5, at + 0.5, color=_BAND, zorder=0)
        names = [f"rank {rank}{f': {ASYNCHRONOUS}' if thread else ''}" for rank, thread in rows]
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, (end - begin) / 1e3)
        axes.set_xlabel("milliseconds")
        figure.set_figheight(0.35 * len(rows) + 0.9 + legend(figure, handles))
        figure.savefig(file)
