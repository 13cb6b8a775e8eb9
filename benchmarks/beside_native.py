"""Is mpicoll ever slower than the MPI's own call?

    MPICOLL_TABLE=off mpicoll bench all -n 2 --backends mpi,mpicoll --min 8 --max 32M --factor 4 --json untuned.json
    mpicoll run -n 2 benchmarks/cold_calls.py cold.json
    python benchmarks/beside_native.py untuned.json ... --cold cold.json ...

For each record, this prints how many cells were slower than LEAST times the MPI's speed, and the microseconds that
mpicoll's call took longer, by size. A cell is a collective, a size and a placement. What a call costs in Python is not
counted as slower. Files of `cold_calls.py` for the same MPI and number of ranks say what that is after arrays of the
cell's size were filled. Without one, it is what the shortest calls take longer.

Records of the same MPI, number of ranks and table are taken together: a cell's times are the medians over them.
"""

from __future__ import annotations

import argparse
import json
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


def over(records: list[dict[Cell, tuple[float, float]]]) -> dict[Cell, tuple[float, float]]:
    """The medians over some records."""
    return {cell: (median(of[cell][0] for of in records), median(of[cell][1] for of in records)) for cell in records[0]}


def costs(longer: dict[Cell, float], colds: list[dict[str, float]]) -> dict[Cell, float]:
    """The microseconds of each cell that a call costs in Python."""
    if not colds:
        call = median(us for (_, size, _), us in longer.items() if size <= SHORT)
        return dict.fromkeys(longer, call)
    by_size = sorted((int(size), median(cold[size] for cold in colds)) for size in colds[0])
    return {cell: next((us for size, us in by_size if size >= cell[1]), by_size[-1][1]) for cell in longer}


def lines(records: list[dict[str, Any]], colds: list[dict[str, Any]]) -> Iterator[str]:
    found, about = over([medians(record) for record in records]), records[0]["environment"]
    longer = {cell: ours - bare for cell, (bare, ours) in found.items()}
    of_setting = [cold["longer_us"] for cold in colds if (cold["mpi"], cold["ranks"]) == (about["mpi"], about["ranks"])]
    call = costs(longer, of_setting)
    speeds = {
        cell: max(bare / ours, min(1.0, bare / max(ours - call[cell], 0.1))) for cell, (bare, ours) in found.items()
    }
    slower = [cell for cell, speed in speeds.items() if speed < LEAST]
    started = ", ".join(record["started"] for record in records)
    yield f"{about['mpi']}, {about['ranks']} ranks, {about['fingerprint']}, {started}"
    yield f"table: {about['table'] or 'none'}"
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


def loaded(name: str) -> dict[str, Any]:
    with open(name) as file:
        found: dict[str, Any] = json.load(file)
    return found


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("records", nargs="+")
parser.add_argument("--cold", nargs="*", default=[])
given = parser.parse_args()
of_python = [loaded(name) for name in given.cold]
settings: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
for name in given.records:
    record = loaded(name)
    about = record["environment"]
    settings.setdefault((about["mpi"], about["ranks"], about["table"]), []).append(record)
for records in settings.values():
    print(*lines(records, of_python), "", sep="\n")
