"""Makes mpicoll/select.json: from which size on which schedule is measured to be faster than what the MPI offers.

    python benchmarks/select_table.py measure allreduce reduce:max   # a record: sums, or this operation
    python benchmarks/select_table.py                                # the table, from all records

A record holds the usual placement of each collective, median times over calls that took turns with those of the
others. A schedule enters the table from the smallest size from which on it won at every size measured, at 2 and at 4
ranks; so it is never chosen where it was measured to be slower.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records"
TABLE = Path(__file__).parents[1] / "mpicoll" / "select.json"
RANKS = (2, 4)
WIN = 1.2
"""A schedule must be faster by this factor: from job to job the same call's time differs by up to a fifth, by where its
buffers lie."""
SWEEPS = (("64K", "16M", 4), ("32M", "64M", 2))
"""From, to and factor: finer where vectors leave the caches."""
CANDIDATES = {
    "bcast": ("scatter_allgather", "chain", "double_binary_tree"),
    "reduce": ("rabenseifner", "chain", "binomial_tree"),
    "allreduce": ("ring", "rabenseifner", "bine"),
    "allgather": ("ring", "recursive_doubling", "linear"),
    "reduce_scatter": ("ring", "recursive_halving", "pairwise"),
    "alltoall": ("pairwise", "linear"),
}
OURS = "max"
"""A reduction of floats that no MPI computes rightly: exchange is what a schedule must beat there."""


def measure(cases: list[str]) -> None:
    """Measure these cases; those that the record holds besides stay there."""
    rows: list[dict[str, Any]] = []
    environment: dict[str, Any] = {}
    for ranks in RANKS:
        for case in cases:
            collective, _, named = case.partition(":")
            op = named or "sum"
            base = "exchange" if op == OURS else "native"
            for low, high, factor in SWEEPS:
                found = bench(collective, ranks, op, (base, *CANDIDATES[collective]), low, high, factor)
                environment = found["environment"]
                for row in found["rows"]:
                    if row["placement"] == usual(found["rows"]):
                        kept = {k: row[k] for k in ("collective", "size", "p50_us", "time_us", "calls", "wrong")}
                        rows.append({"ranks": ranks, "op": op, "algorithm": row["route"], **kept})
    library = environment["mpi"].rpartition(" ")[0]
    path = RECORDS / f"select-{library.replace(' ', '').lower()}.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    measured = {(row["collective"], row["op"]) for row in rows}
    rows = [row for row in before if (row["collective"], row["op"]) not in measured] + rows
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(
        f'{{"library": {json.dumps(library)},\n"environment": {json.dumps(environment)},\n"rows": [\n{lines}\n]}}\n'
    )


def bench(
    collective: str, ranks: int, op: str, names: tuple[str, ...], low: str, high: str, factor: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "bench.json")
        command = [sys.executable, "-m", "mpicoll", "bench", collective, "-n", str(ranks), "--backends", "mpicoll"]
        command += ["--algorithms", ",".join(names), "--op", op, "--min", low, "--max", high, "--factor", str(factor)]
        subprocess.run([*command, "--seconds", "0.4", "--json", str(output)], check=True, timeout=300)
        found: dict[str, Any] = json.loads(output.read_text())
        return found


def usual(rows: list[dict[str, Any]]) -> str:
    """The placement that comes first: the one in which torch's own collective is."""
    placement: str = rows[0]["placement"]
    return placement


def make_table() -> None:
    rows: list[dict[str, Any]] = []
    for path in sorted(RECORDS.glob("select-*.json")):
        record = json.loads(path.read_text())
        times: dict[tuple[str, str], dict[str, dict[tuple[int, int], float]]] = defaultdict(lambda: defaultdict(dict))
        for row in record["rows"]:
            times[row["collective"], row["op"]][row["algorithm"]][row["size"], row["ranks"]] = row["p50_us"]
        for (collective, op), by_algorithm in times.items():
            rows += winners(record["library"], collective, op, by_algorithm)
    rows.sort(key=lambda r: (r["library"], r["collective"], r["ours"], r["from_bytes"]))
    lines = ",\n".join(json.dumps(row) for row in rows)
    TABLE.write_text(f'{{"rows": [\n{lines}\n]}}\n')


def winners(
    library: str, collective: str, op: str, times: dict[str, dict[tuple[int, int], float]]
) -> list[dict[str, Any]]:
    """The best schedule from the size on from which it won everywhere, and a better one for longer vectors."""
    base = times.pop("exchange" if op == OURS else "native")
    sizes = sorted({size for size, _ in base})
    found: list[dict[str, Any]] = []
    since: dict[str, int] = {}
    for name, by_case in times.items():
        for size in reversed(sizes):
            if not all(base[size, r] >= WIN * by_case[size, r] for r in RANKS):
                break
            since[name] = size
    for size in sizes:
        able = [name for name, first in since.items() if first <= size]
        if not able:
            continue
        best = min(able, key=lambda name: sum(times[name][size, r] / base[size, r] for r in RANKS))
        if not found or found[-1]["algorithm"] != best:
            ours = op == OURS
            row = {"library": library, "collective": collective, "ours": ours, "ranks": [RANKS[0], RANKS[-1]]}
            found.append({**row, "from_bytes": size, "algorithm": best})
    return found


if __name__ == "__main__":
    measure(sys.argv[2:]) if sys.argv[1:2] == ["measure"] else make_table()
