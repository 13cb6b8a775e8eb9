"""The table: a narrow one that fits 80 columns and shows medians, or a wide one with the columns of nccl-tests.

A line of it is the rows of one size on one backend, one for each placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from mpicoll.bench.cases.case import PLACEMENTS
from mpicoll.bench.report.rows import IN_FILES, Note, Report, Row, grouped
from mpicoll.bench.report.verdict import verdict
from mpicoll.collectives import Collective
from mpicoll.units import size_text

__all__ = ["by_size", "footer", "header", "heading", "line", "merged", "routes"]

_NARROW = "{:>8} {:>9} {:>9} {:>7} {:>7} {:>6}  {}"
_WHAT = "{:>10} {:>9} {:>10} {:>5} {:>4}  {:<{}}"
_FIGURES = " {:>8} {:>6} {:>6} {:>6}"
_MORE = "  {:>8} {:>8} {:>7}"


def header(report: Report) -> str:
    """The command and the environment, as comment lines."""
    e = report.environment
    versions = [f"{name} {e[name]}" for name in ("mpi4py", "numpy", "torch", "nccl") if e[name]]
    nodes = "1 node" if e["nodes"] == 1 else f"{e['nodes']} nodes"
    lines = [
        report.command,
        f"{e['ranks']} ranks on {nodes}, bound to cores {' | '.join(e['binding'][:8])}"
        + (" | ..." if len(e["binding"]) > 8 else ""),
        f"{e['cpu']}, {e['cores']} cores" + "".join(f"; {gpu}" for gpu in dict.fromkeys(e["gpus"])),
        f"{e['mpi']}, {', '.join(versions)}, mpicoll {e['mpicoll']}, Python {e['python']}",
        *([] if e.get("table") is None else [f"mpicoll chooses by {e['table'] or 'no table: none has this setting'}"]),
        *(f"{name}: {how}" for name, how in report.clocks.items() if e["gpus"]),
        *map(str, report.notes),
    ]
    return "\n".join(f"# {each}" for each in lines)


def heading(collective: Collective, width: int, wide: bool = False) -> str:
    """The names of the columns. ``width`` is that of the longest backend's name."""
    usual = IN_FILES[PLACEMENTS[collective.name][0]]
    if not wide:
        names = _NARROW.format("size", "p50", "p99", "busbw", "ratio", "wrong", "backend")
        units = _NARROW.format("(B)", "(us)", "(us)", "(GB/s)", "", "", "").rstrip()
        return "\n".join(("#", f"# {collective.name} {usual}", f"#{names[1:]}", f"#{units[1:]}"))
    what = (
        ("", "", "", "", "", ""),
        ("size", "count", "type", "redop", "root", "backend"),
        ("(B)", "(elems)", *4 * [""]),
    )
    blank, names, units = ("#" + _WHAT.format(*cells, width)[1:] for cells in what)
    figures = _FIGURES.format("time", "algbw", "busbw", "#wrong")
    groups = "".join(f"{name:^{len(figures)}}" for name in IN_FILES.values())
    return "\n".join(
        (
            "#",
            f"# {collective.name}",
            blank + groups + f"{usual:^27}".rstrip(),
            names + 2 * figures + _MORE.format("p50", "p99", "ratio"),
            units + 2 * _FIGURES.format("(us)", "(GB/s)", "(GB/s)", "") + _MORE.format("(us)", "(us)", ""),
        )
    )


def line(rows: Sequence[Row], width: int, wide: bool = False) -> str:
    """One size of one backend."""
    first = rows[0]
    usual = next((row for row in rows if row.is_usual), None)
    p50, p99, busbw, ratio = ("N/A",) * 4
    if usual:
        p50, p99, busbw = _time(usual.p50_us), _time(usual.p99_us), f"{usual.bandwidth:.2f}"
        ratio = "N/A" if usual.ratio is None else f"{usual.ratio:.2f}"
    caveat = f"  ({first.caveat})" if first.caveat else ""
    if not wide:
        wrong = sum(row.wrong for row in rows)
        return _NARROW.format(size_text(first.size), p50, p99, busbw, ratio, wrong, first.backend) + caveat
    root = -1 if first.root is None else first.root
    what = first.size, first.count, first.type, first.redop or "none", root, first.backend
    by = {row.placement: _figures(row) for row in rows}
    figures = "".join(_FIGURES.format(*by.get(placement, ("N/A",) * 4)) for placement in IN_FILES.values())
    return _WHAT.format(*what, width) + figures + _MORE.format(p50, p99, ratio) + caveat


def _figures(row: Row) -> tuple[Any, ...]:
    return _time(row.time_us), f"{row.algbw_gbs:.2f}", f"{row.busbw_gbs:.2f}", row.wrong


def _time(us: float) -> str:
    return f"{us:.2f}" if us < 1e3 else f"{us:.1f}" if us < 1e5 else f"{us:.0f}"


def merged(notes: Sequence[Note]) -> list[Note]:
    """The notes. Those that say the same of all placements of a collective become one."""

    def everywhere(note: Note) -> bool:
        placements = PLACEMENTS[note.collective] if note.collective else ()
        return all(replace(note, placement=p) in notes for p in placements)

    return list(dict.fromkeys(replace(n, placement=None) if everywhere(n) else n for n in notes))


def routes(rows: Sequence[Row]) -> list[str]:
    """Comment lines that say what has carried out the calls of each backend that has several routes."""
    usual = grouped((row for row in rows if row.is_usual), "backend")
    return [
        f"# {backend} took {by_size([(row.size, row.route) for row in mine])}"
        for backend, mine in usual.items()
        if {row.route for row in mine} - {"native", backend}
    ]


def by_size(taken: Sequence[tuple[int, str]]) -> str:
    """Routes of ascending sizes, each with the size from which on it was taken."""
    runs = [(route, next(of_route)[0]) for route, of_route in groupby(taken, key=lambda each: each[1])]
    return ", ".join(f"{route} from {size_text(size)}" if i else route for i, (route, size) in enumerate(runs))


def footer(report: Report) -> str:
    """Whether the results were right, and which backend was the fastest for which sizes."""
    if not report.rows:
        return "# nothing was measured"
    found = f"# {report.wrong} wrong elements in {len(report.rows)} measurements" + ("" if report.wrong else ": OK")
    return "\n".join(filter(None, ["#", found, verdict(report.rows)]))
