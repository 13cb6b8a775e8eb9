"""Prints what `mpicoll tune` measured as a Markdown table: python benchmarks/tuned_table.py RECORD ...

Each cell has the speed-up of the algorithm that was accepted. Where none was, it is empty.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mpicoll.tune.cells import CASES
from mpicoll.tune.file import TableFile
from mpicoll.tune.record import Record
from mpicoll.tune.statistics import mean
from mpicoll.units import size_text


def lines(records: list[Record]) -> list[str]:
    """A row for each collective and number of ranks, a column for each size. All records are of one MPI library."""
    sizes = sorted({cell.size for record in records for cell in record.cells})
    found = [" | ".join(["| collective | ranks", *map(size_text, sizes)]) + " |", "|---" * (2 + len(sizes)) + "|"]
    for case in CASES:
        for record in sorted(records, key=lambda record: record.ranks):
            of_size = {cell.size: cell for cell in record.cells if cell.case == case}
            if of_size:
                row = [f"| {case.replace(':', ' of ')} | {record.ranks}"]
                for cell in (of_size.get(size) for size in sizes):
                    name = None if cell is None else record.verdict(cell)
                    row.append(f"{mean(record.speedups(cell)[name]):.2f} {name}" if cell and name else "")
                found.append(" | ".join(row) + " |")
    return found


def main() -> None:
    records = [record for file in sys.argv[1:] for record in TableFile(Path(file)).records()]
    for mpi in sorted({record.mpi for record in records}):
        print(f"### {mpi}\n", *lines([record for record in records if record.mpi == mpi]), "", sep="\n")


if __name__ == "__main__":
    main()
