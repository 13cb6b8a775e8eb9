"""``python -m mpicoll.bench.comparison FOLDER``: one report of many benchmarks.

Each is of one collective and one dtype. It reads the records ``FOLDER/parts/*.json``, and writes ``report.md``,
``results.json`` and a picture for each dtype to the folder. A part that has left its output, as ``NAME.txt``, and no
record has failed. It loads neither MPI nor torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.bench import plot
from mpicoll.bench.records import Report, Row, columns, grouped, head, load, program
from mpicoll.bench.table import by_size, environment
from mpicoll.errors import ArgumentError
from mpicoll.units import size_text

PARTS = "parts"  # the folder of the records, and of what each benchmark has printed
NCCL = "nccl"
_FASTEST = "The median time of the smallest size, in microseconds. Less is better."
_WIDEST = "The largest bus bandwidth of a median, in 10^9 bytes a second. More is better."


@dataclass(frozen=True)
class Comparison:
    """The records by the names of their parts, and the names of parts that have none."""

    records: dict[str, Report]
    failed: list[str]

    @cached_property
    def rows(self) -> list[Row]:
        return [row for record in self.records.values() for row in record.rows]

    @property
    def wrong(self) -> int:
        return sum(row.wrong for row in self.rows)

    @cached_property
    def backends(self) -> list[str]:
        """All that were asked for or measured, and those that do not run here."""
        asked = [name for record in self.records.values() for name in record.settings["backends"]]
        missing = [note.backend for record in self.records.values() for note in record.notes if not note.collective]
        return [*dict.fromkeys([*asked, *missing, *grouped(self.rows, "backend")])]

    def any(self, key: str) -> bool:
        """Whether the environment of any part has something under this key."""
        return any(record.environment[key] for record in self.records.values())

    def of_dtype(self, dtype: str) -> Report:
        """The parts of one dtype as one report, for its picture."""
        parts = [record for record in self.records.values() if record.settings["dtype"] == dtype]
        return replace(parts[0], rows=[row for part in parts for row in part.rows])


def gather(folder: Path) -> Comparison:
    """What is in the folder. Raises ArgumentError if no part has a record."""
    files = sorted((folder / PARTS).glob("*.json"))
    if not files:
        raise ArgumentError("comparison", "folder", f"records in its folder {PARTS}", str(folder))
    records = sorted(((file.stem, load(file)) for file in files), key=lambda part: part[1].started)
    printed = {file.stem for file in (folder / PARTS).glob("*.txt")}
    return Comparison(dict(records), sorted(printed - {name for name, _ in records}))


def text(found: Comparison, pictures: list[str]) -> str:
    """The report. ``pictures`` are the names of files beside it."""
    where = dict.fromkeys(line for record in found.records.values() for line in environment(record))
    sections: dict[str, Iterable[str]] = {
        f"# mpicoll{', MPI and NCCL on the same GPUs' if found.any('gpus') else ' and MPI on CPUs'}": _summary(found),
        "## What is measured where": (f"- {line}" for line in where),
        "## What to keep in mind": (f"- {caveat}" for caveat in _caveats(found)),
    }
    for dtype, rows in grouped((row for row in found.rows if row.is_usual), "type").items():
        sections |= {
            f"## {dtype}: latency": _table(found, rows, _latency, _FASTEST, ""),
            f"## {dtype}: bandwidth": _table(found, [r for r in rows if r.size], _bandwidth, _WIDEST, ""),
            f"## {dtype}: what carried out the calls": _table(found, rows, lambda mine, _: by_size(mine)),
        }
    shown = [f"![{name.partition('.')[0]}]({name})" for name in pictures]
    sections |= {"## What did not run": _not_run(found), "## Pictures": shown or ["None: matplotlib is not installed."]}
    return "\n\n".join("\n".join([heading, "", *lines]) for heading, lines in sections.items()) + "\n"


def _summary(found: Comparison) -> Iterator[str]:
    begun = sorted(record.started for record in found.records.values())
    yield f"{len(found.records)} benchmarks, the first from {begun[0]}, the last from {begun[-1]}."
    yield f"{found.wrong} wrong elements in {len(found.rows)} measurements."
    interrupted = [name for name, record in found.records.items() if record.interrupted]
    if interrupted:
        yield f"Interrupted before all sizes were measured: {', '.join(interrupted)}."
    if found.failed:
        yield f"Without a record: {', '.join(found.failed)}. What they printed is in `{PARTS}/`."


def _caveats(found: Comparison) -> Iterator[str]:
    yield "All figures are of the placement that all backends have: in place for some collectives, else out of place."
    yield from (f"{caveat}." for caveat in grouped(found.rows, "caveat") if caveat)
    nccl = [row for row in found.rows if row.backend == NCCL]
    if not nccl:
        yield "NCCL was not measured, so there are no ratios to it. The end of this page says why."
    elif not any(row.comparable for row in nccl):
        yield "There are no ratios to NCCL, because its figures are those of a shared GPU."
    else:
        yield "The number in brackets is the figure divided by NCCL's."
    if found.any("oversubscribed"):
        yield "Ranks took turns on the cores, so times hold waits for a core."
    if found.any("gpus") and not found.any("mpi_takes_gpu_memory"):
        yield "The MPI library does not report support for GPU memory: mpicoll sends through host memory."


Cell = Callable[[Sequence[Row], Sequence[Row]], str]
"""The cell of a backend's rows, beside those of NCCL. There are some of the backend."""


def _table(found: Comparison, rows: Sequence[Row], cell: Cell, *above: str) -> Iterator[str]:
    yield from above
    yield f"| collective | {' | '.join(found.backends)} |"
    yield f"|---|{'---|' * len(found.backends)}"
    of_names = grouped(rows, "collective")
    for name in (name for name in COLLECTIVES if name in of_names):
        mine = grouped(of_names[name], "backend")
        nccl = [row for row in mine.get(NCCL, ()) if row.comparable]
        cells = [cell(mine[backend], nccl) if backend in mine else "N/A" for backend in found.backends]
        yield f"| {name} | {' | '.join(cells)} |"


def _latency(mine: Sequence[Row], nccl: Sequence[Row]) -> str:
    row = min(mine, key=lambda row: row.size)
    at = f" at {size_text(row.size)}" if row.size else ""
    return f"{row.p50_us:.1f}{at}{_ratio(row.p50_us, [each.p50_us for each in nccl if each.size == row.size])}"


def _bandwidth(mine: Sequence[Row], nccl: Sequence[Row]) -> str:
    row = max(mine, key=lambda row: row.bandwidth)
    others = sorted((each.bandwidth for each in nccl), reverse=True)
    return f"{row.bandwidth:.2f} at {size_text(row.size)}{_ratio(row.bandwidth, others)}"


def _ratio(mine: float, nccl: list[float]) -> str:
    return f" ({mine / nccl[0]:.2f})" if any(nccl) else ""  # the bus bandwidth of one rank is 0


def _not_run(found: Comparison) -> Iterator[str]:
    """Why a backend or a collective of it is missing above, each reason once."""
    where: dict[str, dict[str, None]] = {}
    measured = grouped((row for row in found.rows if row.is_usual), "backend", "collective", "type")
    for record in found.records.values():
        dtype = record.settings["dtype"]
        for note in record.notes:
            if (note.backend, note.collective, dtype) not in measured:
                what = f"{note.collective} of {dtype}" if note.collective else ""
                where.setdefault(f"- {note.backend}: {note.reason}", {})[what] = None
    for reason, places in where.items():
        listed = ", ".join(filter(None, places))
        yield f"{reason} ({listed})" if listed else reason
    if not where:
        yield "Every backend ran every collective."


def report(folder: Path) -> int:
    """Write the files, and say which. Returns 1 if a part failed or a result was wrong."""
    found = gather(folder)
    dtypes = grouped(found.rows, "type") if find_spec("matplotlib") else {}
    pictures = [folder / f"{dtype}.png" for dtype in dtypes]
    for dtype, picture in zip(dtypes, pictures, strict=True):
        plot.draw(found.of_dtype(dtype), picture)
    digest = {
        "schema": "mpicoll-comparison/1",
        "failed": found.failed,
        "parts": {name: head(record) for name, record in found.records.items()},
        "rows": [columns(row) for row in found.rows],
    }
    written = folder / "report.md", folder / "results.json"
    written[0].write_text(text(found, [picture.name for picture in pictures]))
    written[1].write_text(json.dumps(digest, indent=1) + "\n")
    print(f"# {found.wrong} wrong elements in {len(found.rows)} measurements of {len(found.records)} benchmarks")
    for name in found.failed:
        print(f"# {name} has no record: {folder / PARTS / name}.txt says why")
    print(f"# written: {', '.join(map(str, [*written, *pictures]))}")
    return 1 if found.wrong or found.failed else 0


if __name__ == "__main__":
    program(__doc__, report, folder=Path)
