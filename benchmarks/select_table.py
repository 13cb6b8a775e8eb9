"""Makes mpicoll/select.json: from which size on which schedule is measured to be faster than what the MPI offers.

    python benchmarks/select_table.py measure allreduce reduce:max   # a record: sums, or this operation
    MPICOLL_SHARED_MEMORY=0 python benchmarks/select_table.py measure allreduce   # for nodes whose ranks share none
    python benchmarks/select_table.py                                # the table, from all records

A record holds the usual placement of each collective, median times over calls that took turns with those of the
others. At each size the fastest of the schedules enters the table that won by a fifth at 2 and at 4 ranks. Where none
did, the one of the size before stays if it was no slower than what the MPI offers, which else is taken again.
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
SWEEPS = (("16K", "16M", 4), ("32M", "64M", 2))
"""From, to and factor: finer where vectors leave the caches."""
CANDIDATES = {
    "bcast": ("scatter_allgather", "chain", "double_binary_tree"),
    "reduce": ("rabenseifner", "chain", "binomial_tree"),
    "allreduce": ("ring", "rabenseifner", "bine", "recursive_doubling"),
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
    way = "" if environment["shared_memory"] else "-messages"
    path = RECORDS / f"select-{library.replace(' ', '').lower()}{way}.json"
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
        subprocess.run([*command, "--seconds", "0.2", "--json", str(output)], check=True, timeout=300)
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
            shared = record["environment"]["shared_memory"]
            rows += [
                {"library": record["library"], "shared": shared, **row} for row in winners(collective, op, by_algorithm)
            ]
    rows.sort(key=lambda r: (r["library"], r["shared"], r["collective"], r["ours"], r["from_bytes"]))
    lines = ",\n".join(json.dumps(row) for row in rows)
    TABLE.write_text(f'{{"rows": [\n{lines}\n]}}\n')


def winners(collective: str, op: str, times: dict[str, dict[tuple[int, int], float]]) -> list[dict[str, Any]]:
    """From which size on which schedule, or what the MPI offers, is taken."""
    other = "exchange" if op == OURS else "native"
    base = times[other]
    found: list[dict[str, Any]] = []
    chosen = other
    for size in sorted({size for size, _ in base}):
        gains = {name: [base[size, r] / by_case[size, r] for r in RANKS] for name, by_case in times.items()}
        able = [name for name, gain in gains.items() if min(gain) >= WIN]
        stays = chosen if min(gains[chosen]) >= 1 else other
        best = max(able, key=lambda name: sum(gains[name]), default=stays)
        if best != chosen:
            row = {"collective": collective, "ours": op == OURS, "ranks": [RANKS[0], RANKS[-1]]}
            found.append({**row, "from_bytes": size, "algorithm": best})
        chosen = best
    return found


if __name__ == "__main__":
    measure(sys.argv[2:]) if sys.argv[1:2] == ["measure"] else make_table()
