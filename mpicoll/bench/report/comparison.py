"""``python -m mpicoll.bench.report.comparison FOLDER``: one report of many benchmarks.

Each is of one collective and one dtype. It reads the records ``FOLDER/parts/*.json``, and writes ``report.md``,
``results.json`` and a picture for each dtype to the folder. A part that has left its output, as ``NAME.txt``, and no
record has failed. It loads neither MPI nor torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from mpicoll.bench.report import plot
from mpicoll.bench.report.record import Record, Row, is_usual, load
from mpicoll.bench.report.table import by_size
from mpicoll.collectives import COLLECTIVES
from mpicoll.errors import ArgumentError
from mpicoll.units import size_text

__all__ = ["PARTS", "Comparison", "gather", "main", "report", "text", "write"]

PARTS = "parts"
"""The folder of the records, and of what each benchmark has printed."""
NCCL = "nccl"

_ENVIRONMENT = {
    "cpu": "CPU", "cores": "cores of a node", "gpus": "GPUs", "gpu_sharing": "ranks on one GPU",
    "driver": "GPU driver", "cuda": "CUDA of torch", "nccl": "NCCL", "torch": "torch", "mpi": "MPI library",
    "mpi_takes_gpu_memory": "it takes GPU memory", "mpi4py": "mpi4py", "mpicoll": "mpicoll", "python": "Python",
    "system": "system", "nodes": "nodes", "ranks": "ranks", "binding": "cores of each rank",
}  # fmt: skip
"""What the report shows of the environment, and what it calls it."""


@dataclass(frozen=True)
class Comparison:
    """The records by the names of their parts, and the names of parts that have none."""

    records: dict[str, Record]
    failed: list[str]

    @cached_property
    def rows(self) -> list[Row]:
        return [row for record in self.records.values() for row in record["rows"]]

    @property
    def dtypes(self) -> list[str]:
        return list(dict.fromkeys(row["type"] for row in self.rows))

    @cached_property
    def backends(self) -> dict[str, str]:
        """All that were asked for or measured, each with the reason why it is not here, if it is not."""
        asked = [name for record in self.records.values() for name in record["settings"]["backends"]]
        found = dict.fromkeys([*asked, *(row["backend"] for row in self.rows)], "")
        for note in (note for record in self.records.values() for note in record["not_run"]):
            if note["collective"] is None:
                found[note["backend"]] = note["reason"]
        return found | dict.fromkeys((row["backend"] for row in self.rows), "")

    @property
    def wrong(self) -> int:
        return sum(row["wrong"] for row in self.rows)

    @cached_property
    def environment(self) -> dict[str, list[Any]]:
        """The different values of each key. There are several where parts were measured in different places."""
        found: dict[str, list[Any]] = {}
        for record in self.records.values():
            for key, value in record["environment"].items():
                if value not in found.setdefault(key, []):
                    found[key].append(value)
        return found

    def of_dtype(self, dtype: str) -> Record:
        """The parts of one dtype as one record, for its picture."""
        parts = [record for record in self.records.values() if record["settings"]["dtype"] == dtype]
        copies: dict[int, list[float]] = {}
        for copy in (copy for part in parts for copy in part["copies"]):
            copies.setdefault(copy["size"], []).append(copy["p50_us"])
        floor = [{"size": size, "p50_us": median(times)} for size, times in sorted(copies.items())]
        return {**parts[0], "rows": [row for part in parts for row in part["rows"]], "copies": floor}


def gather(folder: Path) -> Comparison:
    """What is in the folder. Raises ArgumentError if no part has a record."""
    files = sorted((folder / PARTS).glob("*.json"))
    if not files:
        raise ArgumentError("comparison", "folder", f"records in its folder {PARTS}", str(folder))
    records = sorted(((file.stem, load(file)) for file in files), key=lambda part: str(part[1]["started"]))
    printed = {file.stem for file in (folder / PARTS).glob("*.txt")}
    return Comparison(dict(records), sorted(printed - {name for name, _ in records}))


def text(found: Comparison, pictures: list[str]) -> str:
    """The report. ``pictures`` are the names of files beside it."""
    title = "mpicoll, MPI and NCCL on the same GPUs" if any(found.environment["gpus"]) else "mpicoll and MPI on CPUs"
    lines = [f"# {title}", "", *_summary(found), "", "## What is measured where", "", *_environment(found)]
    lines += ["", "## What to keep in mind", "", *(f"- {caveat}" for caveat in _caveats(found))]
    for dtype in found.dtypes:
        rows = [row for row in found.rows if row["type"] == dtype and is_usual(row)]
        lines += [
            "",
            f"## {dtype}: latency",
            "",
            "The median time of the smallest size, in microseconds. Less is better.",
        ]
        lines += ["", *_table(found, rows, _latency)]
        lines += [
            "",
            f"## {dtype}: bandwidth",
            "",
            "The largest bus bandwidth of a median, in 10^9 bytes a second. More is better.",
        ]
        lines += ["", *_table(found, [row for row in rows if row["size"]], _bandwidth)]
        lines += ["", f"## {dtype}: what carried out the calls", "", *_table(found, rows, _routes)]
    lines += ["", "## What did not run", "", *_not_run(found)]
    lines += ["", "## Pictures", "", *(f"![{name.partition('.')[0]}]({name})" for name in pictures)]
    return "\n".join([*lines, "" if pictures else "None: matplotlib is not installed.", ""])


def _summary(found: Comparison) -> Iterator[str]:
    begun = sorted(record["started"] for record in found.records.values())
    yield f"{len(found.records)} benchmarks, the first from {begun[0]}, the last from {begun[-1]}."
    yield f"{found.wrong} wrong elements in {len(found.rows)} measurements."
    interrupted = [name for name, record in found.records.items() if record["interrupted"]]
    if interrupted:
        yield f"Interrupted before all sizes were measured: {', '.join(interrupted)}."
    if found.failed:
        yield f"Without a record: {', '.join(found.failed)}. What they printed is in `{PARTS}/`."


def _environment(found: Comparison) -> Iterator[str]:
    yield from ("| what | |", "|---|---|")
    for key, name in _ENVIRONMENT.items():
        values = [_value(value) for value in found.environment[key] if value not in (None, [])]
        if values:
            yield f"| {name} | {' / '.join(dict.fromkeys(values))} |"


def _value(value: Any) -> str:
    if isinstance(value, list):
        counts = {each: value.count(each) for each in value}
        return ", ".join(f"{n} x {each}" if n > 1 else str(each) for each, n in counts.items())
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _caveats(found: Comparison) -> Iterator[str]:
    for clock, how in {k: v for record in found.records.values() for k, v in record["clocks"].items()}.items():
        yield f"`{clock}` of the records: {how}." + " The tables show this one." * (clock == "times_us")
    yield "All figures are of the placement that all backends have: in place for some collectives, else out of place."
    yield from (f"{caveat}." for caveat in dict.fromkeys(row["caveat"] for row in found.rows if row["caveat"]))
    nccl = [row for row in found.rows if row["backend"] == NCCL]
    if not nccl:
        yield "NCCL was not measured, so there are no ratios to it. The end of this page says why."
    elif not any(row["comparable"] for row in nccl):
        yield "There are no ratios to NCCL, because its figures are those of a shared GPU."
    else:
        yield "The number in brackets is the figure divided by NCCL's."
    if any(found.environment["oversubscribed"]):
        yield "Ranks took turns on the cores, so times hold waits for a core."
    if False in found.environment["mpi_takes_gpu_memory"]:
        yield "The MPI library does not say that it takes GPU memory: mpicoll sends through host memory."
    different = [name for key, name in _ENVIRONMENT.items() if len(found.environment[key]) > 1]
    if different:
        yield f"Not all benchmarks ran in the same environment. These differ: {', '.join(different)}."


Cell = Callable[[list[Row], list[Row]], str]
"""The cell of a backend's rows, beside those of NCCL. There are some of the backend."""


def _table(found: Comparison, rows: list[Row], cell: Cell) -> Iterator[str]:
    yield f"| collective | {' | '.join(found.backends)} |"
    yield f"|---|{'---|' * len(found.backends)}"
    for name in (name for name in COLLECTIVES if any(row["collective"] == name for row in rows)):
        of_name = [row for row in rows if row["collective"] == name]
        nccl = [row for row in of_name if row["backend"] == NCCL and row["comparable"]]
        cells = []
        for backend, reason in found.backends.items():
            mine = [row for row in of_name if row["backend"] == backend]
            cells.append(cell(mine, nccl) if mine else f"not here: {reason}" if reason else "N/A")
        yield f"| {name} | {' | '.join(cells)} |"


def _latency(mine: list[Row], nccl: list[Row]) -> str:
    row = min(mine, key=lambda row: int(row["size"]))
    other = [each["p50_us"] for each in nccl if each["size"] == row["size"]]
    at = f" at {size_text(row['size'])}" if row["size"] else ""
    return f"{row['p50_us']:.1f}{at}{_ratio(row['p50_us'], other)}"


def _bandwidth(mine: list[Row], nccl: list[Row]) -> str:
    row = max(mine, key=_busbw)
    return (
        f"{_busbw(row):.2f} at {size_text(row['size'])}{_ratio(_busbw(row), [max(map(_busbw, nccl))] if nccl else [])}"
    )


def _busbw(row: Row) -> float:
    return float(row["busbw_gbs"] * row["time_us"] / row["p50_us"])


def _ratio(mine: float, nccl: list[float]) -> str:
    return f" ({mine / nccl[0]:.2f})" if any(nccl) else ""  # the bus bandwidth of one rank is 0


def _routes(mine: list[Row], _: list[Row]) -> str:
    return by_size(sorted((row["size"], row["route"]) for row in mine))


def _not_run(found: Comparison) -> Iterator[str]:
    """Why a backend or a collective of it is missing above, each reason once."""
    where: dict[tuple[str, str], dict[str, None]] = {}
    measured = {(row["backend"], row["collective"], row["type"]) for row in found.rows if is_usual(row)}
    for record in found.records.values():
        dtype = record["settings"]["dtype"]
        for note in record["not_run"]:
            at = note["collective"]
            if (note["backend"], at, dtype) not in measured:
                where.setdefault((note["backend"], note["reason"]), {})[f"{at} of {dtype}" if at else ""] = None
    for (backend, reason), places in where.items():
        listed = ", ".join(filter(None, places))
        yield f"- {backend}: {reason}" + (f" ({listed})" if listed else "")
    if not where:
        yield "Every backend ran every collective."


def write(found: Comparison, folder: Path) -> list[Path]:
    """Write the files, and return their paths."""
    pictures = [folder / f"{dtype}.png" for dtype in found.dtypes] if find_spec("matplotlib") else []
    for dtype, picture in zip(found.dtypes, pictures, strict=False):
        plot.draw(found.of_dtype(dtype), picture)
    report, results = folder / "report.md", folder / "results.json"
    report.write_text(text(found, [picture.name for picture in pictures]))
    digest = {
        "schema": "mpicoll-comparison/1",
        "failed": found.failed,
        "parts": {
            name: {key: value for key, value in record.items() if key not in ("schema", "rows", "copies")}
            for name, record in found.records.items()
        },
        "rows": [{key: value for key, value in row.items() if key != "times_us"} for row in found.rows],
    }
    results.write_text(json.dumps(digest, indent=1) + "\n")
    return [report, results, *pictures]


def report(folder: Path) -> int:
    """Write the files, and say which. Returns 1 if a part failed or a result was wrong."""
    found = gather(folder)
    written = write(found, folder)
    print(f"# {found.wrong} wrong elements in {len(found.rows)} measurements of {len(found.records)} benchmarks")
    for name in found.failed:
        print(f"# {name} has no record: {folder / PARTS / name}.txt says why")
    print(f"# written: {', '.join(map(str, written))}")
    return 1 if found.wrong or found.failed else 0


def main() -> int:
    try:
        if len(sys.argv) != 2:
            raise ArgumentError("comparison", "arguments", "a folder", " ".join(sys.argv[1:]) or "none")
        return report(Path(sys.argv[1]))
    except ArgumentError as e:
        print(f"mpicoll: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
