"""How good is a table some time after it was made?

    mpicoll tune -n 2,3,4 -o table.json
    mpicoll tune -n 2,3,4 -o later.json
    python benchmarks/regret.py table.json later.json
    python benchmarks/regret.py --as-unknown mpicoll/calls/select.json benchmarks/records/tune-*.json
    python benchmarks/regret.py --by-mean table.json later.json

The first file is a table, such as the one that is part of mpicoll. The others are tables of `mpicoll tune`, and their
times count. A cell is a collective, a size and a number of ranks. As in the tuner, the kind of memory pages counts on
which an algorithm was worse. The regret is how much longer the table's choice took than the fastest algorithm there.
With ``--as-unknown``, the table chooses as on a CPU that it does not know. With ``--by-mean``, not the table's rows
choose but its times: the algorithm runs that was fastest on average, however little it gained and however seldom it was
measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from mpicoll.bench.tune.cells import Cell
from mpicoll.bench.tune.file import TableFile
from mpicoll.bench.tune.record import Record
from mpicoll.bench.tune.statistics import mean, worse
from mpicoll.calls.measured import Section, sections
from mpicoll.units import size_text

LITTLE, SLOWER = 0.05, 0.97
Choice = Callable[[Cell], str]
"""Which algorithm runs for a cell."""


class Outcome(NamedTuple):
    """Of one cell: the choice, how many times as fast it was as what would run otherwise, and its regret."""

    cell: Cell
    chosen: str
    speedup: float
    best: str
    regret: float


def speeds(cell: Cell, record: Record) -> dict[str, float]:
    """How many times as fast as what would run otherwise each algorithm was on average."""
    return {name: mean(worse(each)) for name, each in record.speedups(cell).items()} | {cell.otherwise: 1.0}


def by_rows(section: Section) -> Choice:
    """What the section's rows say."""

    def choose(cell: Cell) -> str:
        rows = section.rows.get((cell.otherwise, cell.operation), ())
        return next((name for nbytes, name in rows if cell.size >= nbytes), cell.otherwise)

    return choose


def by_mean(earlier: Record) -> Choice:
    """What was fastest on average."""

    def choose(cell: Cell) -> str:
        found = speeds(cell, earlier)
        return max(found, key=lambda name: found[name])

    return choose


def outcomes(choose: Choice, record: Record) -> Iterator[Outcome]:
    """Of each cell that the record has measured with what is chosen there."""
    for cell in record.cells:
        speedups = speeds(cell, record)
        chosen = choose(cell)
        best = max(speedups, key=lambda name: speedups[name])
        if chosen in speedups:
            yield Outcome(cell, chosen, speedups[chosen], best, speedups[best] / speedups[chosen] - 1)


def choosing(table: list[Section], record: Record, as_unknown: bool) -> Section | None:
    """The section from which a job in the record's setting chooses."""
    of_setting = {each.cpu: each for each in table if each.setting[1:] == record.setting[1:]}
    return (None if as_unknown else of_setting.get(record.cpu)) or of_setting.get(None)


def lines(choose: Choice, record: Record) -> Iterator[str]:
    """What came out in one setting: the shares, and then the cells where it was not good."""
    found = [*outcomes(choose, record)]
    little = sum(each.regret <= LITTLE for each in found)
    slower = sum(each.speedup < SLOWER for each in found)
    began = sorted(launch.began for launch in record.launches.values())
    yield f"{record.mpi}, {record.ranks} ranks, {record.cpu}"
    yield f"measured from {began[0]} to {began[-1]} in {len(began)} launches"
    share = f"{little / len(found):.1%}"
    yield f"{len(found)} cells: a regret of at most {LITTLE:.0%} in {share}, less than {SLOWER}x in {slower}"
    speed = geometric_mean(each.speedup for each in found)
    best = geometric_mean(each.speedup * (1 + each.regret) for each in found)
    yield f"{speed:.2f} times as fast as without a table (geometric mean), by the fastest algorithms {best:.2f} times"
    for each in sorted(found, key=lambda each: -each.regret):
        if each.regret > LITTLE or each.speedup < SLOWER:
            yield (
                f"  {each.cell.case:>18} {size_text(each.cell.size):>5}  {each.chosen:>20} {each.speedup:5.2f}x"
                f"  regret {each.regret:4.0%} against {each.best}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--as-unknown", action="store_true")
    parser.add_argument("--by-mean", action="store_true")
    parser.add_argument("table", type=Path)
    parser.add_argument("later", type=Path, nargs="+")
    given = parser.parse_args()
    table = sections(given.table.read_text(), str(given.table))
    earlier = {record.setting: record for record in TableFile(given.table).records()} if given.by_mean else {}
    for record in (record for file in given.later for record in TableFile(file).records()):
        section = choosing(table, record, given.as_unknown)
        if section is None:
            print(f"{record.mpi}, {record.ranks} ranks, {record.cpu}: the table has no section for it\n")
        else:
            choose = by_mean(earlier[record.setting]) if given.by_mean else by_rows(section)
            print(*lines(choose, record), "", sep="\n")


if __name__ == "__main__":
    main()
