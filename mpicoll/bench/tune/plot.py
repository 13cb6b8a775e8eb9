"""The picture of a table: how many times as fast each candidate was, over size, from the worst launch to the best."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.bench.report.style import REFERENCE, SETTINGS, WIDTH, legend, note, styles
from mpicoll.bench.tune.cells import CASES
from mpicoll.bench.tune.record import Record
from mpicoll.bench.tune.statistics import mean, worse
from mpicoll.units import size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpicoll.bench.report.style import Style

__all__ = ["draw"]


def draw(records: Sequence[Record], path: Path) -> None:
    """A panel for each case, and a column for each number of ranks. A ring marks what the table chooses."""
    import matplotlib
    from matplotlib.figure import Figure

    drawn = [record for record in records if any(len(record.of(cell)) for cell in record.cells)]
    cases = [case for case in CASES if any(cell.case == case for record in drawn for cell in record.cells)]
    looks = styles(sorted({n for record in drawn for cell in record.cells for n in record.speedups(cell)}))
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(max(WIDTH, 3.7 * len(drawn)), 1), dpi=150, layout="constrained")
        note(figure, " · ".join(dict.fromkeys(f"{record.cpu} · {record.mpi}" for record in drawn)))
        handles: dict[str, Any] = {}
        panels = figure.subplots(max(1, len(cases)), max(1, len(drawn)), squeeze=False)
        for case, line in zip(cases, panels, strict=False):
            for record, axes in zip(drawn, line, strict=True):
                handles |= _panel(record, case, looks, axes)
        figure.set_figheight(2.4 * max(1, len(cases)) + 0.4 + (legend(figure, handles) if handles else 0))
        figure.savefig(path)


def _panel(record: Record, case: str, looks: dict[str, Style], axes: Axes) -> dict[str, Any]:
    """Returns the lines by their labels."""
    cells = [cell for cell in record.cells if cell.case == case]
    seen = {cell: {n: worse(each) for n, each in record.speedups(cell).items()} for cell in cells}
    handles: dict[str, Any] = {}
    for name, style in looks.items():
        mine = [(cell.size, seen[cell][name]) for cell in cells if seen[cell].get(name)]
        if not mine:
            continue
        at = [size for size, _ in mine]
        (handles[name],) = axes.plot(at, [mean(each) for _, each in mine], **style.line(name))
        low, high = [min(each) for _, each in mine], [max(each) for _, each in mine]
        axes.fill_between(at, low, high, color=style.color, alpha=0.13, linewidth=0)
        chosen = [(cell.size, mean(seen[cell][name])) for cell in cells if record.verdict(cell) == name]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), "o", markersize=11, fillstyle="none", color=REFERENCE)
    axes.axhline(1, color=REFERENCE, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.minorticks_off()
    axes.set_xticks([cell.size for cell in cells], [size_text(cell.size) for cell in cells])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    crowded = ", that take turns on cores" if record.oversubscribed else ""
    title = f"{case.replace(':', ' of ')}, {record.ranks} ranks{crowded}"
    axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
    return handles
