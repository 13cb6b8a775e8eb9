"""Is mpicoll ever slower than the MPI's own call?

    MPICOLL_TABLE=off mpicoll bench all -n 2 --backends mpi,mpicoll --min 16K --factor 4 --json untuned.json
    python benchmarks/beside_native.py untuned.json ...

In each record, a line for all cells, and one for each in which mpicoll was slower than LEAST times the MPI's speed. A
cell is a collective, a size and a placement. What a call costs in Python, CALL_US, is not counted as mpicoll's.
"""

from __future__ import annotations

import json
import sys
from statistics import geometric_mean
from typing import Any

from mpicoll.units import size_text

LEAST = 0.97
CALL_US = 1.3
"""See records/message-cost-2ranks.txt."""


def lines(record: dict[str, Any]) -> list[str]:
    by_cell: dict[tuple[str, int, str], dict[str, dict[str, Any]]] = {}
    for row in record["rows"]:
        if row["size"]:
            by_cell.setdefault((row["collective"], row["size"], row["placement"]), {})[row["backend"]] = row
    found = {cell: (of["mpi"]["p50_us"], of["mpicoll"]["p50_us"], of["mpicoll"]["route"])
             for cell, of in by_cell.items() if {"mpi", "mpicoll"} <= of.keys()}  # fmt: skip
    speeds = {cell: max(bare / ours, min(1.0, bare / max(ours - CALL_US, 0.1)))
              for cell, (bare, ours, _) in found.items()}  # fmt: skip
    slower = {cell: speed for cell, speed in speeds.items() if speed < LEAST}
    about = record["environment"]
    said = [f"{about['mpi']}, {about['ranks']} ranks, {about.get('fingerprint', about['cpu'])}, {record['started']}",
            f"{len(speeds)} cells: {geometric_mean(speeds.values()):.2f} times the MPI's speed (geometric mean), "
            f"less than {LEAST} in {len(slower)}"]  # fmt: skip
    for (collective, size, placement), speed in sorted(slower.items(), key=lambda each: each[1]):
        bare, ours, route = found[collective, size, placement]
        times = f"{bare:10.1f} us, mpicoll {ours:10.1f} us"
        said.append(f"  {collective:>14} {size_text(size):>5} {placement:>12} {times}  {speed:.2f}x  {route}")
    return said


for name in sys.argv[1:]:
    with open(name) as file:
        print(*lines(json.load(file)), "", sep="\n")
