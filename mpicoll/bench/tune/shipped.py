"""Makes the table that is part of mpicoll, out of the records of all machines.

``python -m mpicoll.bench.tune.shipped RECORD ... -o TABLE`` reads tables that ``mpicoll tune -o`` has written. A
machine that was measured gets a section of its own, with what won in each of its records. Other machines get what won
in every record of every CPU. What not all of them have measured won there on two at least, and by far.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpicoll.bench.tune.cells import Cell
from mpicoll.bench.tune.file import TableFile, text_of
from mpicoll.bench.tune.record import Record, rows
from mpicoll.bench.tune.statistics import LAUNCHES, Launches, accepted, mean, worse
from mpicoll.calls.measured import SETTING
from mpicoll.machine.system import write_whole

__all__ = ["main", "table"]

BY_FAR = 1.2
"""A candidate of a record with fewer launches than are needed for a bound must have won by this factor in each. From
launch to launch, the time of the same call differs by up to a fifth. Where not all CPUs have measured a candidate, it
must have won by this factor on those that have."""


def won(seen: Launches, launches: int) -> bool:
    """Whether a candidate has won in a record that has so many launches of the cell."""
    return accepted(seen) if launches > LAUNCHES else min(worse(seen)) >= BY_FAR


def winner(records: Sequence[Record], cell: Cell) -> str | None:
    """The fastest of the candidates that have won in each of these records that measured them: an older record may lack
    a newer algorithm, and so may all records of a CPU."""
    by_name: dict[str, list[float]] = defaultdict(list)
    seen_on: dict[str, set[str]] = defaultdict(set)
    lost = set()
    cpus = {record.cpu for record in records}
    for record in records:
        launches = len(record.of(cell))
        for name, seen in record.speedups(cell).items():
            by_name[name].append(mean(worse(seen)))
            seen_on[name].add(record.cpu)
            if not won(seen, launches):
                lost.add(name)
    by_far = {name for name, each in by_name.items() if len(seen_on[name]) > 1 and min(each) >= BY_FAR}
    able = [name for name in by_name if name not in lost and (seen_on[name] == cpus or name in by_far)]
    return max(able, key=lambda name: mean(by_name[name]), default=None)


def table(records: Sequence[Record]) -> str:
    """The text of the table."""
    by_setting: dict[tuple[str, int, bool], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        by_setting[record.mpi, record.ranks, record.oversubscribed][record.cpu].append(record)
    found = []
    for _, by_cpu in sorted(by_setting.items()):
        found += [_section(cpu, of_one) for cpu, of_one in sorted(by_cpu.items())]
        if len(by_cpu) > 1:
            found.append(_section(None, [record for of_one in by_cpu.values() for record in of_one]))
    return text_of(found)


def _section(cpu: str | None, records: Sequence[Record]) -> dict[str, Any]:
    """What these records of one MPI and number of ranks have in common."""
    cells = sorted({cell for record in records for cell in record.cells})
    found = rows(
        cells,
        lambda cell: winner(records, cell),
        lambda cell, name: min((s for record in records if (s := record.speed(cell, name))), default=0.0),
    )
    used = {(collective, name) for by in found.values() for collective, each in by.items() for name in each.values()}
    digests: dict[str, dict[str, str]] = {}
    for record in records:
        for collective, of in record.digests(cpu).items():
            for name in sorted(of.keys() & {name for c, name in used if c == collective}):
                digests.setdefault(collective, {})[name] = of[name]
    setting = dict(zip(SETTING, records[0].setting, strict=True))
    return {**setting, "cpu": cpu, "algorithms": digests, **found}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mpicoll.bench.tune.shipped", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    parser.add_argument("-o", dest="output", required=True, type=Path, metavar="TABLE")
    args = parser.parse_args()
    if missing := [str(file) for file in args.records if not file.is_file()]:
        parser.error(f"RECORD: expected a file; given {', '.join(missing)}")
    records = [record for file in args.records for record in TableFile(file).records()]
    write_whole(args.output, table(records))


if __name__ == "__main__":
    main()
