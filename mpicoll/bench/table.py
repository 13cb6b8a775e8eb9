"""The table, whose line is the rows of one size on one backend, one for each placement. Below it, a sentence for each
collective says which backend is the fastest for which sizes."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from operator import itemgetter

from mpicoll.algorithms.collectives import Collective
from mpicoll.bench.cases import PLACEMENTS
from mpicoll.bench.records import Note, Report, Row, grouped
from mpicoll.units import count, size_text

_LINE = "{:>8} {:>9} {:>9} {:>7} {:>7} {:>6}  {}"
_COLUMNS = {"size": "(B)", "p50": "(us)", "p99": "(us)", "busbw": "(GB/s)", "ratio": "", "wrong": "", "backend": ""}
"""The columns of the table, and their units."""
_ALIKE = 1.05  # times within this factor count as equal: the fastest backend of the size before is then named again
_MOST_RANGES = 4


def header(report: Report) -> str:
    """The command, the environment and what is not measured, as comment lines."""
    return "\n".join(f"# {each}" for each in (report.command, *environment(report), *map(str, report.notes)))


def environment(report: Report) -> list[str]:
    """Where it was measured, and how, in lines."""
    e = report.environment
    versions = [f"{name} {e[name]}" for name in ("mpi4py", "numpy", "torch", "nccl") if e[name]]
    cores = e["binding"] if len(e["binding"]) <= 8 else [*e["binding"][:8], "..."]
    return [
        f"{e['ranks']} ranks on {count(e['nodes'], 'node')}, bound to cores {' | '.join(cores)}",
        "; ".join((f"{e['cpu']}, {e['cores']} cores", *dict.fromkeys(e["gpus"]))),
        f"{e['mpi']}, {', '.join(versions)}, mpicoll {e['mpicoll']}, Python {e['python']}",
        *(f"OVERLOADED, so these times say little: {each}" for each in e.get("overload", ())),
    ]


def heading(collective: Collective) -> str:
    """The names of the columns, and their units."""
    lines = [f"{collective.name} {PLACEMENTS[collective.name][0]}"]
    lines += [_LINE.format(*cells)[2:] for cells in (_COLUMNS.keys(), _COLUMNS.values())]
    return "\n".join(["#", *(f"# {each}".rstrip() for each in lines)])


def line(rows: Sequence[Row]) -> str:
    first = rows[0]
    p50, p99, busbw, ratio = ["N/A"] * 4
    for row in rows:
        if row.is_usual:
            p50, p99, busbw = _time(row.p50_us), _time(row.p99_us), f"{row.bandwidth:.2f}"
            ratio = "N/A" if row.ratio is None else f"{row.ratio:.2f}"
    wrong = sum(row.wrong for row in rows)
    shown = _LINE.format(size_text(first.size), p50, p99, busbw, ratio, wrong, first.backend)
    return f"{shown}  ({first.caveat})" if first.caveat else shown


def _time(us: float) -> str:
    return f"{us:.2f}" if us < 1e3 else f"{us:.1f}" if us < 1e5 else f"{us:.0f}"


def merged(notes: Sequence[Note]) -> list[Note]:
    """The notes. Those that say the same of all placements of a collective become one."""

    def everywhere(note: Note) -> bool:
        placements = PLACEMENTS[note.collective] if note.collective else ()
        return all(replace(note, placement=p) in notes for p in placements)

    return list(dict.fromkeys(replace(n, placement=None) if everywhere(n) else n for n in notes))


def routes(rows: Sequence[Row]) -> list[str]:
    """Comment lines that say what has carried out the calls of each backend whose name does not say it."""
    usual = grouped((row for row in rows if row.is_usual), "backend")
    return [
        f"# {backend} took {by_size(mine)}"
        for backend, mine in usual.items()
        if {row.route for row in mine} - {"native", backend, backend.partition(":")[2]}
    ]


def by_size(rows: Sequence[Row]) -> str:
    """The routes, each with the size from which on it was taken."""
    in_order = sorted(rows, key=lambda row: row.size)
    runs = [(route, next(of_route).size) for route, of_route in groupby(in_order, key=lambda row: row.route)]
    return ", ".join(f"{route} from {size_text(size)}" if i else route for i, (route, size) in enumerate(runs))


def footer(report: Report) -> str:
    """Whether the results were right, and which backend was the fastest for which sizes, if the times can tell."""
    if not report.rows:
        return "# nothing was measured"
    found = f"# {report.wrong} wrong elements in {len(report.rows)} measurements" + ("" if report.wrong else ": OK")
    said = verdict(report.rows)
    if said and report.environment["overload"]:
        said = "# OVERLOADED: these times do not tell which backend is the fastest"
    return "\n".join(filter(None, ["#", found, said]))


def verdict(rows: Sequence[Row]) -> str:
    """Comment lines. There are none if fewer than two backends can be compared."""
    lines = [
        textwrap.fill(f"{name}: {said}", 80, initial_indent="# ", subsequent_indent="#   ")
        for name, of_name in grouped(rows, "collective").items()
        if (said := _fastest(of_name))
    ]
    caveats = {f"# {row.backend} is not compared: {row.caveat}" for row in rows if not row.comparable}
    return "\n".join([*lines, *sorted(caveats)])


def _fastest(rows: Sequence[Row]) -> str:
    """Which backend is the fastest for which sizes, of those at which backends can be compared."""
    best, won = "", list[tuple[str, str]]()
    for size, of_size in grouped(rows, "size").items():
        times = {row.backend: row.p50_us for row in of_size if row.is_usual and row.comparable}
        if len(times) > 1:
            least = min(times, key=times.__getitem__)
            if times.get(best, inf) >= _ALIKE * times[least]:
                best = least
            won.append((best, size_text(size)))
    ranges = []
    for backend, run in groupby(won, key=itemgetter(0)):
        sizes = [size for _, size in run]
        where = "" if sizes == ["0"] else f" at {sizes[0]}" if len(sizes) == 1 else f" from {sizes[0]} to {sizes[-1]}"
        ranges.append(backend + where)
    if len(ranges) <= _MOST_RANGES:
        return f"the fastest is {', then '.join(ranges)}." if ranges else ""
    often = Counter(backend for backend, _ in won).most_common()
    each = ", ".join(f"{name} at {count(n, 'size')}" for name, n in often)
    return f"the fastest changes from size to size: {each}."
