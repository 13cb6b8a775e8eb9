"""Measure schedules against what would run otherwise: the part of `select_table.py measure` that runs on the ranks.

    mpicoll run -n 2 benchmarks/select_measure.py reduce:max    # cases; all if you name none

The program adds to the record of this machine and MPI what the record does not have yet for this number of ranks. The
figures are medians over calls that took turns, in each collective's usual placement. Huge and small memory pages are
both measured: NumPy requests huge pages for arrays of 4 MiB and more, and torch does not.
"""

from __future__ import annotations

import json
import mmap
import re
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.arrays.dtypes import DTYPES
from mpicoll.bench.backends import Backend, open_backend
from mpicoll.bench.cases.case import PLACEMENTS, Case, elements
from mpicoll.bench.cases.memory import Arena
from mpicoll.bench.measuring.environment import environment
from mpicoll.bench.measuring.timing import Runner, measure
from mpicoll.bench.session import open_session
from mpicoll.collectives import COLLECTIVES
from mpicoll.machine.cpu import UNKNOWN
from mpicoll.units import size_text

RECORDS = Path(__file__).parent / "records"
SIZES = tuple(1 << n for n in range(14, 27, 2))  # 16 KiB to 64 MiB
SECONDS = 0.25
"""The time for all algorithms at one size. Each gets at least five calls."""
OURS = "max"
"""A reduction of floats that no MPI computes correctly. Here a schedule must beat exchange."""
CANDIDATES = {
    "bcast": ("scatter_allgather", "chain", "double_binary_tree"),
    "reduce": ("rabenseifner", "chain", "binomial_tree"),
    "allreduce": ("ring", "rabenseifner", "bine", "recursive_doubling"),
    "allgather": ("ring", "recursive_doubling", "linear"),
    "reduce_scatter": ("ring", "recursive_halving", "pairwise"),
    "alltoall": ("pairwise", "linear"),
}
CASES = [f"{c}{op}" for c in CANDIDATES for op in ("", f":{OURS}") if not op or COLLECTIVES[c].reduces]
HUGE = 4 << 20
"""The bytes of an array from which on NumPy requests huge pages."""


def pages(huge: bool) -> Callable[[int], Any]:
    """Return a function that makes arrays on huge pages, where NumPy's would be on them, or on small pages.

    Each array is its own mapping, because memory that is used again keeps its pages. An array begins 64 bytes into a
    page, as long arrays of both libraries roughly do.
    """

    def new(nbytes: int) -> Any:
        memory = mmap.mmap(-1, nbytes + 64, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE if huge and nbytes >= HUGE else mmap.MADV_NOHUGEPAGE)
        return np.frombuffer(memory, np.uint8, nbytes, 64)

    return new


def huge_bytes() -> int:
    """How many bytes of this process lie on huge pages."""
    said = re.search(r"AnonHugePages:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text())
    return 0 if said is None else int(said[1]) << 10


MEMORY = {"huge": pages(True), "small": pages(False)}


class Measuring:
    """The measurements for one number of ranks, and the record that they are added to."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self.world, self.session = world, open_session(world, "cpu")
        self.arenas = {kind: Arena("cpu", new) for kind, new in MEMORY.items()}
        self.backends: dict[str, Backend] = {}
        found = environment(self.session)
        refuse_what_tells_nothing(found)
        self.path = RECORDS / f"select-{machine_name(found)}.json"
        empty = {"fingerprint": found["fingerprint"], "mpi": found["mpi"], "environments": {}, "rows": []}
        before = json.loads(self.path.read_text()) if self.path.exists() and world.rank == 0 else empty
        self.record: dict[str, Any] = world.bcast(before)
        self.record["environments"][str(world.size)] = found
        self.done = {tuple(row[key] for key in ("ranks", "case", "size", "pages")) for row in self.record["rows"]}

    def run(self, cases: list[str]) -> None:
        """Measure what the record does not have yet, and write the record after each measurement."""
        for case in cases:
            for size in SIZES:
                for kind in MEMORY:
                    if (self.world.size, case, size, kind) not in self.done:
                        self.record["rows"].append(self.point(case, size, kind))
                        if self.world.rank == 0:
                            write(self.record, self.path)

    def point(self, case: str, size: int, kind: str) -> dict[str, Any]:
        """The median of each algorithm, in microseconds."""
        name, _, op = case.partition(":")
        collective, dtype, world = COLLECTIVES[name], DTYPES["float32"], self.world
        count = elements(collective, size, dtype, world.size)
        placement = PLACEMENTS[name][0]
        case_ = Case(collective, count, dtype, op or "sum", 0, world.rank, world.size, placement)
        pairs = self.arenas[kind].buffers(case_)
        names = ("exchange" if op == OURS else "native", *CANDIDATES[name])
        runners = [Runner(pairs, [self.backend(a).bind(pair) for pair in pairs]) for a in names]
        start = time.perf_counter()
        measure(world, runners, SECONDS)
        wrong = sum(r.wrong for r in runners)
        if wrong:
            raise SystemExit(f"{case} of {size} bytes: {wrong} wrong elements")
        medians = {a: round(float(np.median(r.times)), 2) for a, r in zip(names, runners, strict=True)}
        if world.rank == 0:
            best = min(names[1:], key=lambda a: medians[a])
            gain = f"{best} {medians[names[0]] / medians[best]:.2f} times as fast"
            spent = f"({time.perf_counter() - start:.1f} s)"
            print(f"{world.size} ranks, {case} {size_text(size)}, {kind} pages: {gain} {spent}", flush=True)
        if kind == "huge" and size >= 4 * HUGE and world.allreduce(huge_bytes(), MPI.MIN) < size // 2:
            raise SystemExit(f"{case} of {size} bytes: the system had no huge pages left")
        calls = min(len(r.times) for r in runners)
        return {"ranks": world.size, "case": case, "size": size, "pages": kind, "calls": calls, "p50_us": medians}

    def backend(self, algorithm: str) -> Backend:
        if algorithm not in self.backends:
            self.backends[algorithm] = open_backend(f"mpicoll:{algorithm}", self.session)
        return self.backends[algorithm]


def refuse_what_tells_nothing(found: dict[str, Any]) -> None:
    """Stop if the record could not say which machine it is from, or would not measure what it claims."""
    reasons = {
        "this system does not tell which CPU it has": found["fingerprint"] == UNKNOWN,
        "the ranks share no memory": not found["shared_memory"],
        "this system gives no huge pages": found["huge_pages"] in (None, "never"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise SystemExit(f"nothing was measured: {reason}")


def machine_name(found: dict[str, Any]) -> str:
    """The machine and its MPI, as part of a file name."""
    words = f"{found['cpu']} {sha256(found['fingerprint'].encode()).hexdigest()[:6]} {found['mpi'].replace(' ', '')}"
    return re.sub(r"[^a-z0-9.]+", "-", words.lower())


def write(record: dict[str, Any], path: Path) -> None:
    """Write one row a line. A run that is ended leaves either the old file or the new one."""
    rows = ",\n".join(json.dumps(row) for row in record["rows"])
    head = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record.items() if key != "rows")
    half = path.with_suffix(".part")
    half.write_text(f'{{{head},\n"rows": [\n{rows}\n]}}\n')
    half.replace(path)


def main() -> None:
    cases = sys.argv[1:] or CASES
    for case in cases:
        if case not in CASES:
            raise SystemExit(f"{case}: expected cases out of {', '.join(CASES)}")
    Measuring(MPI.COMM_WORLD).run(cases)


if __name__ == "__main__":
    main()
