"""What a benchmark measured: rows, each of one case on one backend, as the files have them.

The table, the verdict, the pictures and the reports are all made of rows, be they measured now or read from a file.
Times are in microseconds, sizes in bytes, bandwidths in 10^9 bytes a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from mpicoll.bench.cases.case import PLACEMENTS, Case, Placement

__all__ = ["IN_FILES", "Note", "Report", "Row", "ends", "fastest", "grouped", "measured", "rated"]

IN_FILES: dict[Placement, str] = {"out": "out-of-place", "in": "in-place"}
"""What the files and the table call the placements."""
_DIGITS = {
    **dict.fromkeys(("time_us", "p50_us", "p99_us", "event_p50_us"), 3),
    **dict.fromkeys(("algbw_gbs", "busbw_gbs"), 6),
    "ratio": 4,
}
"""How many decimals the files have."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case on one backend. docs/how-to/benchmark.md describes the fields. ``times_us`` has the time of each call on
    its slowest rank. Records that are older lack the fields that have a default."""

    collective: str
    size: int
    count: int
    type: str
    redop: str | None
    root: int | None
    backend: str
    placement: str
    route: str
    calls: int
    time_us: float
    p50_us: float
    p99_us: float
    algbw_gbs: float
    busbw_gbs: float
    event_p50_us: float | None = None
    wrong: int
    ratio: float | None
    comparable: bool = True
    caveat: str = ""
    times_us: list[float]

    @property
    def bandwidth(self) -> float:
        """The bus bandwidth of the median call. ``busbw_gbs`` is that of the mean, as in nccl-tests."""
        return self.busbw_gbs * self.time_us / self.p50_us

    @property
    def is_usual(self) -> bool:
        """Whether the row is of its collective's usual placement, which all backends have."""
        return self.placement == IN_FILES[PLACEMENTS[self.collective][0]]

    @property
    def label(self) -> str:
        """The backend, with what its figures do not show."""
        return f"{self.backend} ({self.caveat})" if self.caveat else self.backend

    def rounded(self) -> Row:
        """The row with as many decimals as the files have."""
        given = {name: getattr(self, name) for name in _DIGITS}
        short = {name: round(value, _DIGITS[name]) for name, value in given.items() if value is not None}
        return replace(self, **short, times_us=[round(t, 2) for t in self.times_us])


def measured(
    case: Case, backend: str, route: str, times: list[float], wrong: int, on_device: Sequence[float] = ()
) -> Row:
    """The row of a case. ``route`` is what has carried the calls out, ``wrong`` counts wrong elements over all checks.
    ``on_device`` has the times between CUDA events, on a GPU."""
    mean = float(np.mean(times))
    algbw = case.bytes / mean / 1e3
    caveat = ""
    if case.sharing > 1:
        caveat = f"GPU shared by {case.sharing} ranks" + ": not NCCL's bandwidth" * (backend == "nccl")
    return Row(
        collective=case.name, size=case.bytes, count=case.count, type=case.dtype.name,
        redop=case.op if case.collective.reduces else None, root=case.root if case.collective.rooted else None,
        backend=backend, placement=IN_FILES[case.placement], route=route, calls=len(times), time_us=mean,
        p50_us=float(np.percentile(times, 50)), p99_us=float(np.percentile(times, 99)), algbw_gbs=algbw,
        busbw_gbs=algbw * case.collective.bus_factor(case.ranks),
        event_p50_us=float(np.percentile(on_device, 50)) if on_device else None, wrong=wrong, ratio=None,
        comparable=backend != "nccl" or not caveat,  # NCCL is not made for ranks that share a GPU
        caveat=caveat, times_us=times,
    )  # fmt: skip


def rated(rows: Sequence[Row], first: str) -> list[Row]:
    """The rows of one size with their ratios: a backend's median over that of the backend ``first``. Above 1, it is
    slower. None where there is nothing to compare."""
    firsts = {row.placement: row.p50_us for row in rows if row.backend == first and row.comparable}
    return [
        replace(row, ratio=row.p50_us / firsts[row.placement] if row.comparable and row.placement in firsts else None)
        for row in rows
    ]


def grouped(rows: Iterable[T], *names: str) -> dict[Any, list[T]]:
    """The rows by the values of these fields, in the order in which the values come first."""
    found: dict[Any, list[T]] = {}
    for row in rows:
        found.setdefault(attrgetter(*names)(row), []).append(row)
    return found


def ends(rows: Sequence[Any]) -> tuple[int, int]:
    """The smallest and the largest size."""
    sizes = [row.size for row in rows]
    return min(sizes), max(sizes)


def fastest(rows: Sequence[Row], size: int) -> Row:
    """The row of this size with the least median, in either placement. Rows that may not be compared count only where
    there are no others."""
    return min((row for row in rows if row.size == size), key=lambda row: (not row.comparable, row.p50_us))


@dataclass(frozen=True)
class Note:
    """Why a backend, or one collective of it in one placement, was not measured."""

    backend: str
    reason: str
    collective: str | None = None
    placement: Placement | None = None

    def __str__(self) -> str:
        where = "" if self.placement is None else {"out": " out of place", "in": " in place"}[self.placement]
        what = f" {self.collective}{where}" if self.collective else ""
        return f"{self.backend} does not run{what}: {self.reason}"


@dataclass
class Report:
    """Everything that a benchmark found.

    ``copies`` has the floor, by size: the median time in which each rank copies so many bytes from one buffer to
    another while all other ranks do the same. ``clocks`` says how times were taken.
    """

    command: str
    started: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    notes: list[Note] = field(default_factory=list)
    clocks: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    copies: dict[int, float] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def wrong(self) -> int:
        return sum(row.wrong for row in self.rows)

    def rounded(self) -> Report:
        """The report as a file of it is read."""
        copies = {size: round(us, 3) for size, us in sorted(self.copies.items())}
        return replace(self, rows=[row.rounded() for row in self.rows], copies=copies)
