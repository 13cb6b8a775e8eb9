"""What does ``mpicoll run --elastic`` cost where no rank is lost? All-reduces of 8 bytes and of 1 MiB, back to back.

    python benchmarks/elastic_cost.py > benchmarks/records/elastic-cost-2ranks-openmpi.txt

Jobs with and without ``--elastic`` take turns. The figures are microseconds a call: the minimum and
the median over all jobs' turns.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from time import perf_counter

import numpy as np

import mpicoll
from mpicoll.jobs.launcher import find_launcher
from mpicoll.machine.linux import cpu_name

JOBS, TURNS, RANKS = 4, 20, 2
CALLS = {1: 500, 131_072: 10}
MEASURE = "--measure"


def measure() -> None:
    """In a rank: print the seconds of a call of each kind, in each turn."""
    from mpi4py import MPI  # initialises it, which the process that starts the jobs must not

    world, comm = MPI.COMM_WORLD, mpicoll.Communicator()
    times: dict[str, list[float]] = {}
    for _ in range(TURNS):
        for length, calls in CALLS.items():
            x = np.zeros(length)
            for name, call in (
                ("mpi4py", lambda x=x: world.Allreduce(MPI.IN_PLACE, x)),
                ("Communicator, native", lambda x=x: comm.allreduce(x, out=x, algorithm="native")),
                ("Communicator, ring", lambda x=x: comm.allreduce(x, out=x, algorithm="ring")),
            ):
                call()
                world.Barrier()
                start = perf_counter()
                for _ in range(calls):
                    call()
                times.setdefault(f"{name}, {8 * length} B", []).append((perf_counter() - start) / calls * 1e6)
    if world.rank == 0:
        print(json.dumps(times))


def main() -> None:
    """Start the jobs, and print the medians."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(JOBS):
        for flags in [], ["--elastic"]:
            argv = [sys.executable, "-m", "mpicoll", "run", *flags, "-n", str(RANKS), __file__, MEASURE]
            answer = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
            for name, times in json.loads(answer).items():
                found.setdefault(name, {}).setdefault(" ".join(flags), []).extend(times)
    mpi = find_launcher().version.splitlines()[0]
    print(f"{cpu_name()}, {os.cpu_count()} cores, {RANKS} ranks; {platform.system()} {platform.machine()}, ", end="")
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {mpi}; {JOBS} jobs of each kind by turns")
    print(f"{'us a call':32} {'minimum: usual':>15} {'elastic':>9} {'median: usual':>15} {'elastic':>9}")
    for name, by in found.items():
        usual, elastic = by[""], by["--elastic"]
        print(f"{name:32} {min(usual):15.2f} {min(elastic):9.2f}", end=" ")
        print(f"{statistics.median(usual):15.2f} {statistics.median(elastic):9.2f}")


if __name__ == "__main__":
    measure() if MEASURE in sys.argv else main()
