"""What a run of the tuner has come to, in lines."""

from __future__ import annotations

from collections.abc import Iterator

from mpicoll.tune.record import Record
from mpicoll.tune.statistics import mean
from mpicoll.units import size_text

__all__ = ["lines"]


def lines(record: Record) -> Iterator[str]:
    """A line for each case: what runs at each size, and how many times as fast it was on the worse kind of pages."""
    by_case: dict[str, list[str]] = {}
    for cell in record.cells:
        name = record.verdict(cell)
        gain = f" {mean(record.speedups(cell)[name]):.2f}x" if name else ""
        by_case.setdefault(cell.case, []).append(f"{size_text(cell.size)} {name or cell.otherwise}{gain}")
    for case, cells in by_case.items():
        yield f"{case}, {record.ranks} ranks: {', '.join(cells)}"
