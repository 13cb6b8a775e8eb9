"""The table: a narrow one that fits 80 columns and shows medians, or a wide one with the columns of nccl-tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from mpicoll.bench.cases.case import PLACEMENTS, Placement
from mpicoll.bench.report.measurements import Line, Measurement, Note, Report
from mpicoll.bench.report.verdict import verdict
from mpicoll.collectives import Collective
from mpicoll.units import size_text

__all__ = ["by_size", "footer", "header", "heading", "merged", "routes", "row"]

_NARROW = "{:>8} {:>9} {:>9} {:>7} {:>7} {:>6}  {}"
_WHAT = "{:>10} {:>9} {:>10} {:>5} {:>4}  {:<{}}"
_FIGURES = " {:>8} {:>6} {:>6} {:>6}"
_MORE = "  {:>8} {:>8} {:>7}"
_GROUPS: dict[Placement, str] = {"out": "out-of-place", "in": "in-place"}


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
        *(f"{name}: {how}" for name, how in report.clocks.items() if e["gpus"]),
        *map(str, report.notes),
    ]
    return "\n".join(f"# {line}" for line in lines)


def heading(collective: Collective, width: int, wide: bool = False) -> str:
    """The names of the columns. ``width`` is that of the longest backend's name."""
    if wide:
        return _wide_heading(collective, width)
    names = _NARROW.format("size", "p50", "p99", "busbw", "ratio", "wrong", "backend")
    units = _NARROW.format("(B)", "(us)", "(us)", "(GB/s)", "", "", "").rstrip()
    usual = _GROUPS[PLACEMENTS[collective.name][0]]
    return "\n".join(("#", f"# {collective.name} {usual}", f"#{names[1:]}", f"#{units[1:]}"))


def row(line: Line, width: int, wide: bool = False) -> str:
    """One size of one backend."""
    if wide:
        return _wide_row(line, width)
    usual, size = line.usual, size_text(line.case.bytes)
    cells = ("N/A",) * 4
    if usual:  # the bandwidth, too, is that of the median call
        cells = (_time(usual.p50), _time(usual.p99), f"{usual.busbw * usual.time / usual.p50:.2f}", _ratio(line))
    return _NARROW.format(size, *cells, line.wrong, line.backend) + _caveat(line)


def _ratio(line: Line) -> str:
    ratio = line.ratio(PLACEMENTS[line.case.name][0])
    return "N/A" if ratio is None else f"{ratio:.2f}"


def _wide_heading(collective: Collective, width: int) -> str:
    usual = _GROUPS[PLACEMENTS[collective.name][0]]
    group = _FIGURES.format("time", "algbw", "busbw", "#wrong")
    units = _FIGURES.format("(us)", "(GB/s)", "(GB/s)", "")
    blank = " " * len(_what(["", "", "", "", "", ""], width))
    return "\n".join(
        (
            "#",
            f"# {collective.name}",
            "#" + blank[1:] + "".join(f"{_GROUPS[p]:^{len(group)}}" for p in _GROUPS) + f"{usual:^27}".rstrip(),
            "#" + _what(["size", "count", "type", "redop", "root", "backend"], width)[1:]
            + 2 * group + _MORE.format("p50", "p99", "ratio"),
            "#" + _what(["(B)", "(elems)", "", "", "", ""], width)[1:]
            + 2 * units + _MORE.format("(us)", "(us)", ""),
        )
    )  # fmt: skip


def _what(cells: Sequence[Any], width: int) -> str:
    return _WHAT.format(*cells, width)


def _wide_row(line: Line, width: int) -> str:
    c, collective = line.case, line.case.collective
    op = c.op if collective.reduces else "none"
    root = c.root if collective.rooted else -1
    usual = line.usual
    more = (_time(usual.p50), _time(usual.p99), _ratio(line)) if usual else ("N/A",) * 3
    return (
        _what([c.bytes, c.count, c.dtype.name, op, root, line.backend], width)
        + "".join(_FIGURES.format(*_figures(line.by.get(p))) for p in _GROUPS)
        + _MORE.format(*more)
        + _caveat(line)
    )


def _caveat(line: Line) -> str:
    """It ends the row, beside the figures that it is about."""
    caveat = next(iter(line.by.values())).caveat
    return f"  ({caveat})" if caveat else ""


def _figures(m: Measurement | None) -> tuple[str, ...]:
    return ("N/A",) * 4 if m is None else (_time(m.time), f"{m.algbw:.2f}", f"{m.busbw:.2f}", str(m.wrong))


def _time(us: float) -> str:
    return f"{us:.2f}" if us < 1e3 else f"{us:.1f}" if us < 1e5 else f"{us:.0f}"


def merged(notes: Sequence[Note]) -> list[Note]:
    """The notes. Those that say the same of all placements of a collective become one."""

    def everywhere(note: Note) -> bool:
        placements = PLACEMENTS[note.collective] if note.collective else ()
        return all(replace(note, placement=p) in notes for p in placements)

    return list(dict.fromkeys(replace(n, placement=None) if everywhere(n) else n for n in notes))


def routes(lines: Sequence[Line]) -> list[str]:
    """Comment lines that say what has carried out the calls of each backend that has several routes."""
    backends = dict.fromkeys(line.backend for line in lines)
    taken = {
        b: [(m.case.bytes, m.route) for line in lines if line.backend == b and (m := line.usual)] for b in backends
    }
    return [
        f"# {backend} took {by_size(each)}"
        for backend, each in taken.items()
        if {route for _, route in each} - {"native", backend}
    ]


def by_size(taken: Sequence[tuple[int, str]]) -> str:
    """Routes of ascending sizes, each with the size from which on it was taken."""
    runs = [(route, next(of_route)[0]) for route, of_route in groupby(taken, key=lambda each: each[1])]
    return ", ".join(f"{route} from {size_text(size)}" if i else route for i, (route, size) in enumerate(runs))


def footer(report: Report) -> str:
    """Whether the results were right, and which backend was the fastest for which sizes."""
    checked = len(report.measurements)
    if not checked:
        return "# nothing was measured"
    found = f"# {report.wrong} wrong elements in {checked} measurements" + ("" if report.wrong else ": OK")
    return "\n".join(filter(None, ["#", found, verdict(report)]))
