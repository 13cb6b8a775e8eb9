"""Make mpicoll/calls/select.json, which says from which size on which schedule beat the default in measurements.

    python benchmarks/select_table.py measure                        # a record of this machine and MPI; 10 minutes
    python benchmarks/select_table.py measure allreduce reduce:max   # only these: sums, or the named operation
    python benchmarks/select_table.py                                # the table, from the records of all machines

Measure on a machine that does nothing else. The program does not measure again what the record already has. So if a run
was ended, the next one continues, and if you remove a record, the next run makes it again.

A measurement applies to one CPU, MPI library and number of ranks, and either to ranks that take turns on cores or to
ranks that do not. At each size, the table names the fastest schedule that won by a fifth on both kinds of memory pages.
Where none did, the schedule of the size before stays, if it was no slower on either kind. Otherwise what it replaced
runs again, from halfway between the two sizes on. What several CPUs have in common applies to other CPUs, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isqrt
from pathlib import Path
from typing import Any

from mpicoll.calls.measured import sections
from mpicoll.units import size_text

RECORDS = Path(__file__).parent / "records"
TABLE = Path(__file__).parents[1] / "mpicoll/calls/select.json"
RANKS = (2, 3, 4)
WIN = 1.2
"""A schedule must be faster by this factor. From job to job the time of the same call differs by up to a fifth,
depending on where its buffers lie."""
OTHERWISE = ("native", "exchange")

PAGES = {"huge", "small"}

Record = dict[str, Any]
Times = dict[str, float]
"""Microseconds by algorithm."""
BySize = dict[int, list[Times]]
"""The measurements at each size: one for each kind of pages and each CPU."""
Cases = dict[str, BySize]
Where = tuple[str, int, bool]
"""An MPI library, a number of ranks, and whether they take turns on cores."""


def measured(records: Sequence[Record]) -> dict[Where, dict[str, Cases]]:
    """The measurements of each CPU that exist for both kinds of pages."""
    found: dict[Where, dict[str, Cases]] = defaultdict(dict)
    for record in records:
        for ranks, environment in record["environments"].items():
            points: dict[tuple[str, int], dict[str, Times]] = defaultdict(dict)
            for row in record["rows"]:
                if row["ranks"] == int(ranks):
                    points[row["case"], row["size"]][row["pages"]] = row["p50_us"]
            cases: Cases = defaultdict(dict)
            for (case, size), by_pages in sorted(points.items()):
                if set(by_pages) == PAGES:
                    cases[case][size] = list(by_pages.values())
            found[record["mpi"], int(ranks), environment["oversubscribed"]][record["fingerprint"]] = cases
    return found


def common(by_cpu: Sequence[Cases]) -> Cases:
    """The measurements that all of these CPUs have, together."""
    return {
        case: {
            size: [times for cases in by_cpu for times in cases[case][size]]
            for size in by_cpu[0][case]
            if all(size in cases[case] for cases in by_cpu)
        }
        for case in by_cpu[0]
        if all(case in cases for cases in by_cpu)
    }


def section(cpu: str | None, where: Where, cases: Cases) -> str:
    """One section of select.json."""
    mpi, ranks, oversubscribed = where
    head = json.dumps({"cpu": cpu, "mpi": mpi, "ranks": ranks, "oversubscribed": oversubscribed})
    rows: dict[str, list[str]] = {otherwise: [] for otherwise in OTHERWISE}
    for case, times in cases.items():
        if times and (found := winners(base(times), times)):
            rows[base(times)].append(f"\n  {json.dumps(case.partition(':')[0])}: {json.dumps(found)}")
    return ",\n".join([head[:-1], *(f' "{name}": {{{",".join(those)}}}' for name, those in rows.items())]) + "}"


def table(records: Sequence[Record]) -> str:
    """The text of select.json."""
    parts = []
    for where, by_cpu in sorted(measured(records).items()):
        parts += [section(cpu, where, cases) for cpu, cases in sorted(by_cpu.items())]
        if len(by_cpu) > 1:
            parts.append(section(None, where, common(list(by_cpu.values()))))
    return '{"measured": [' + ",".join(f"\n{part}" for part in parts) + "\n]}\n"


def base(times: BySize) -> str:
    """What the schedules are compared with."""
    return next(name for name in OTHERWISE if name in next(iter(times.values()))[0])


def winners(otherwise: str, times: BySize) -> dict[int, str]:
    """From which size on which schedule runs, or again what it replaced."""
    found: dict[int, str] = {}
    chosen, before = otherwise, 0
    for size in sorted(times):
        gains = {name: [t[otherwise] / t[name] for t in times[size]] for name in times[size][0]}
        able = [name for name, each in gains.items() if min(each) >= WIN]
        stays = chosen if min(gains[chosen]) >= 1 else otherwise
        best = max(able, key=lambda name: sum(gains[name]), default=stays)
        if best != chosen:
            found[isqrt(before * size) if best == otherwise else size] = best
        chosen, before = best, size
    return found


def shown(records: Sequence[Record]) -> Iterator[str]:
    """The lines of a table for each record. A cell says how many times as fast the best schedule was, and names it. It
    takes the kind of pages on which the schedule won less."""
    for record in records:
        sizes = sorted({row["size"] for row in record["rows"]})
        yield f"### {record['mpi']}, {next(iter(record['environments'].values()))['cpu']} ({record['fingerprint']})\n"
        yield "| collective | ranks | " + " | ".join(f"{size_text(size)}iB" for size in sizes) + " |"
        yield "|---" * (2 + len(sizes)) + "|"
        cases: dict[tuple[str, int], BySize] = defaultdict(lambda: defaultdict(list))
        for row in record["rows"]:
            cases[row["case"], row["ranks"]][row["size"]].append(row["p50_us"])
        for (case, ranks), times in sorted(cases.items()):
            cells = [best(base(times), times[size]) for size in sizes]
            yield f"| {case.replace(':', ' of ')} | {ranks} | " + " | ".join(cells) + " |"
        yield ""


def best(otherwise: str, times: Sequence[Times]) -> str:
    gains = {name: min(t[otherwise] / t[name] for t in times) for name in times[0] if name != otherwise}
    name = max(gains, key=lambda name: gains[name])
    return f"{gains[name]:.2f} {name}"


def measure(cases: Sequence[str]) -> None:
    for ranks in RANKS:
        program = [str(Path(__file__).with_name("select_measure.py")), *cases]
        subprocess.run([sys.executable, "-m", "mpicoll", "run", "-n", str(ranks), *program], check=True)


def records() -> list[Record]:
    found = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("select-*.json"))]
    return [record for record in found if "fingerprint" in record]  # the oldest do not name their machine


def make() -> None:
    text = table(records())
    sections(text)  # raises the error that mpicoll would raise
    TABLE.write_text(text)
    print("\n".join(shown(records())))


if __name__ == "__main__":
    measure(sys.argv[2:]) if sys.argv[1:2] == ["measure"] else make()
