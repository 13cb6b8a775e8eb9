"""Is mpicoll ever slower than the MPI's own call?

    MPICOLL_TABLE=off mpicoll bench all -n 2 --backends mpi,mpicoll --min 8 --max 32M --factor 4 --json untuned.json
    python benchmarks/beside_native.py untuned.json ...

For each record, this prints how many cells were slower than LEAST times the MPI's speed, and the microseconds that
mpicoll's call took longer, by size. A cell is a collective, a size and a placement. What the shortest calls take longer
is what a call costs in Python. It is not counted as slower.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from statistics import geometric_mean, median
from typing import Any

from mpicoll.units import size_text

LEAST = 0.97
SHORT = 1 << 10
"""Bytes up to which a call is short."""

Cell = tuple[str, int, str]


def medians(record: dict[str, Any]) -> dict[Cell, tuple[float, float]]:
    """Of each cell the microseconds of the MPI's call and of mpicoll's."""
    found: dict[Cell, dict[str, float]] = {}
    for row in record["rows"]:
        if row["size"]:
            found.setdefault((row["collective"], row["size"], row["placement"]), {})[row["backend"]] = row["p50_us"]
    return {cell: (of["mpi"], of["mpicoll"]) for cell, of in found.items() if {"mpi", "mpicoll"} <= of.keys()}


def lines(record: dict[str, Any]) -> Iterator[str]:
    found, about = medians(record), record["environment"]
    longer = {cell: ours - bare for cell, (bare, ours) in found.items()}
    call = median(us for (_, size, _), us in longer.items() if size <= SHORT)
    speeds = {cell: max(bare / ours, min(1.0, bare / max(ours - call, 0.1))) for cell, (bare, ours) in found.items()}
    slower = [cell for cell, speed in speeds.items() if speed < LEAST]
    yield f"{about['mpi']}, {about['ranks']} ranks, {about['fingerprint']}, {record['started']}"
    yield (
        f"{len(speeds)} cells: {geometric_mean(speeds.values()):.3f} times the MPI's speed (geometric mean); "
        f"less than {LEAST} in {len(slower)}, less than 0.9 in {sum(speed < 0.9 for speed in speeds.values())}"
    )
    by_size: dict[int, list[float]] = {}
    for (_, size, _), us in longer.items():
        by_size.setdefault(1 << (size - 1).bit_length(), []).append(us)  # 3 ranks have a few bytes less
    yield "longer, us: " + ", ".join(f"{size_text(size)} {median(us):.1f}" for size, us in sorted(by_size.items()))
    for cell in sorted(slower, key=lambda each: speeds[each])[:10]:
        bare, ours = found[cell]
        collective, size, placement = cell
        times = f"{bare:10.1f} us, mpicoll {ours:10.1f} us"
        yield f"  {collective:>14} {size_text(size):>8} {placement:>12} {times}  {speeds[cell]:.2f}x"


for name in sys.argv[1:]:
    with open(name) as file:
        print(*lines(json.load(file)), "", sep="\n")
