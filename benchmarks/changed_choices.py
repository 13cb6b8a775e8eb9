"""What does a change of a table bring? By times that neither of the two tables has seen.

    mpicoll tune -n 2,3,4 -o later.json
    python -m benchmarks.changed_choices old.json new.json later.json

It prints the cells in which the two tables choose differently, with what each choice does: how many times as fast it
was as what would run otherwise, on each kind of memory pages. Then it says how many times as fast as the old choices
the new ones were.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.regret import by_rows, choosing
from mpicoll.bench.tune.cells import Cell
from mpicoll.bench.tune.file import TableFile
from mpicoll.bench.tune.record import Record
from mpicoll.bench.tune.statistics import mean
from mpicoll.calls.measured import sections
from mpicoll.units import size_text


def by_pages(record: Record, cell: Cell, name: str) -> dict[str, float]:
    """How many times as fast an algorithm was on each kind of pages; empty if it was not measured."""
    found: dict[str, list[float]] = defaultdict(list)
    for launch in record.of(cell):
        for pages, time in launch.items():
            if name in time.p50_us:
                found[pages].append(time.p50_us[cell.otherwise] / time.p50_us[name])
    return {pages: mean(each) for pages, each in found.items()}


def main() -> None:
    old, new = (sections(Path(file).read_text(), file) for file in sys.argv[1:3])
    gains: dict[str, list[float]] = defaultdict(list)
    for record in TableFile(Path(sys.argv[3])).records():
        print(f"{record.mpi}, {record.ranks} ranks, {record.cpu}")
        before, after = (choosing(table, record, False) for table in (old, new))
        if before is None or after is None:
            continue
        for cell in record.cells:
            names = by_rows(before)(cell), by_rows(after)(cell)
            one, other = (by_pages(record, cell, name) for name in names)
            if names[0] != names[1] and one and other:
                said = [f"{pages} pages {one[pages]:.2f}x {other[pages]:.2f}x" for pages in one]
                print(f"  {cell.case:>18} {size_text(cell.size):>5}  {' -> '.join(names)}: {', '.join(said)}")
                for pages in one:
                    gains[pages].append(other[pages] / one[pages])
    for pages, each in gains.items():
        faster, slower = sum(gain > 1.03 for gain in each), sum(gain < 0.97 for gain in each)
        print(
            f"on {pages} pages: {len(each)} cells, {mean(each):.2f} times as fast (geometric mean), "
            f"{faster} of them more than 1.03 times, {slower} less than 0.97 times"
        )


if __name__ == "__main__":
    main()
