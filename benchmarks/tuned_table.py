"""Prints what `mpicoll tune` measured as a Markdown table: python benchmarks/tuned_table.py RECORD ...

Each cell has the speed-up of the algorithm that was accepted. Where none was, it is empty. An alltoallv has one
algorithm at all sizes, with its speed-up in each cell.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mpicoll.bench.tune.cells import CASES, Cell
from mpicoll.bench.tune.file import TableFile
from mpicoll.bench.tune.record import Record, for_all_sizes
from mpicoll.units import size_text

LEAST = 16 << 10
"""Bytes of the first column."""


def lines(records: list[Record]) -> list[str]:
    """A row for each collective and number of ranks, a column for each size. All records are of one MPI library."""
    sizes = sorted({cell.size for record in records for cell in record.cells if cell.size >= LEAST})
    found = [" | ".join(["| collective | ranks", *map(size_text, sizes)]) + " |", "|---" * (2 + len(sizes)) + "|"]
    for case in CASES:
        for record in sorted(records, key=lambda record: record.ranks):
            of_size = {cell.size: cell for cell in record.cells if cell.case == case}
            if of_size:
                row = [f"| {case.replace(':', ' of ')} | {record.ranks}"]
                for size in sizes:
                    name = chosen(record, [*of_size.values()], size)
                    row.append(f"{record.speed(of_size[size], name):.2f} {name}" if name and size in of_size else "")
                found.append(" | ".join(row) + " |")
    return found


def chosen(record: Record, cells: list[Cell], size: int) -> str | None:
    """The algorithm that was accepted for one size of these cells."""
    if not cells[0].extent_is_common:
        return for_all_sizes(cells, record.verdict, record.speed).get(0)
    return next((record.verdict(cell) for cell in cells if cell.size == size), None)


def main() -> None:
    records = [record for file in sys.argv[1:] for record in TableFile(Path(file)).records()]
    for mpi in sorted({record.mpi for record in records}):
        print(f"### {mpi}\n", *lines([record for record in records if record.mpi == mpi]), "", sep="\n")


if __name__ == "__main__":
    main()
