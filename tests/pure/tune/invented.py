"""Measurements that nobody made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpicoll.bench.tune.cells import Cell
from mpicoll.bench.tune.record import Launch, Record, Time

MI = 1 << 20
ENVIRONMENT: dict[str, Any] = {"huge_pages": "madvise", "fingerprint": "A", "mpi": "Open MPI 5.0.11", "cpu": "a CPU"}


def record(
    *rows: tuple[str, int, Sequence[dict[str, float]]], cpu: str = "A", ranks: int = 2, key: str = "l"
) -> Record:
    """Each row is a case, a size, and the medians of each launch, which are the same on all kinds of pages."""
    found = Record(cpu, "Open MPI 5.0.11", ranks, False, ENVIRONMENT)
    for case, size, launches in rows:
        for i, medians in enumerate(launches):
            found.launches[f"{key}{i}"] = Launch(f"{key}{i}", f"2026-01-01T00:00:0{i}", "0.1.0")
            found.times += [Time(f"{key}{i}", Cell(case, size), pages, medians) for pages in ("huge", "small")]
    return found


def times(native: float, **others: float) -> dict[str, float]:
    return {"native": native, **others}


def won(n: int = 4, name: str = "ring", by: float = 2.0) -> list[dict[str, float]]:
    return [times(10.0 * by, **{name: 10.0}) for _ in range(n)]
