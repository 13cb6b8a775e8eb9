"""Do the ranks that are left go on rightly when others are killed at random moments of random calls?

    python benchmarks/elastic_kills.py --kills 100 > benchmarks/records/elastic-kills-8ranks-openmpi.txt

It starts jobs with ``mpicoll run --elastic``. In each, 8 ranks sum arrays of all lengths, by all routes, and compare
every element of every sum. One after another, or two at once, ranks are killed by SIGKILL until two are left. Those
must end with 0. If a sum is wrong, or a job does not go on in time, this ends with 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import mpicoll
from mpicoll.errors import RankLost
from mpicoll.jobs.launcher import find_launcher
from mpicoll.machine.linux import cpu_name

SECONDS_TO_GO_ON = 120.0
LENGTHS = (1, 100, 5_000, 131_072, 1_000_000)
ALGORITHMS = (None, "ring", "recursive_doubling", "native")


def work(folder: Path, seed: int) -> None:
    """One rank: sum until the file ``stop`` is there, and tell in a file how many ranks there are and what is done."""
    comm = mpicoll.Communicator()
    me, calls, losses, slowest = comm.rank, 0, 0, 0.0
    (folder / f"pid{me}").write_text(str(os.getpid()))
    members = list(range(comm.size))
    going = True
    while going:
        try:
            tell(folder / f"at{me}", f"{comm.size} {losses} {slowest:.3f}")
            draw = random.Random(f"{seed} {members}")
            while going:
                going = sums_are_right(comm, draw, me, members, (folder / "stop").exists())
                calls += 2
        except RankLost:
            began = time.monotonic()
            comm = comm.shrink()
            members = comm.allgather_object(me)
            slowest, losses = max(slowest, time.monotonic() - began), losses + 1
    tell(folder / f"done{me}", f"{calls} {slowest:.3f}")


def sums_are_right(comm: mpicoll.Communicator, draw: random.Random, me: int, members: list[int], stop: bool) -> bool:
    """Make two calls and compare their results. Returns whether to go on, as all ranks say."""
    length, algorithm = draw.choice(LENGTHS), draw.choice(ALGORITHMS)
    if algorithm == "recursive_doubling" and length > 200_000:
        algorithm = "ring"
    x = np.arange(length, dtype=np.float64) * (me + 1)
    y = comm.allreduce(x, algorithm=algorithm)
    if not np.array_equal(y, np.arange(length) * float(sum(members) + len(members))):
        raise AssertionError(f"rank {me}: allreduce of {length} by {algorithm} among {members} is wrong: {y[:4]}")
    return not comm.allreduce(np.array([int(stop)]), op="max")[0]


def tell(file: Path, text: str) -> None:
    """Write a file at once."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def one_job(ranks: int, least: int, seed: int) -> tuple[int, int, float]:
    """Kill ranks of one job until ``least`` are left. Returns how many were killed, the calls that the ranks made that
    came to the end, and the longest time of a shrink in seconds."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder, alive, killed = Path(name), list(range(ranks)), 0
        argv = [sys.executable, "-m", "mpicoll", "run", "--elastic", "-n", str(ranks), __file__, "--work", name]
        job = subprocess.Popen([*argv, "--seed", str(seed)], stderr=subprocess.PIPE, text=True)
        wait(job, folder, alive, ranks)
        while len(alive) > least:
            time.sleep(draw.uniform(0, 0.8))
            for rank in draw.sample(alive, min(draw.choice((1, 1, 1, 2)), len(alive) - least)):
                os.kill(int((folder / f"pid{rank}").read_text()), signal.SIGKILL)
                alive.remove(rank)
                killed += 1
            wait(job, folder, alive, len(alive))
        (folder / "stop").touch()
        said = job.communicate(timeout=SECONDS_TO_GO_ON)[1]
        if job.returncode or f"{killed} of {ranks} ranks were lost" not in said or "Traceback" in said:
            raise SystemExit(f"job {seed}: exit code {job.returncode}, and it says:\n{said}")
        done = [(folder / f"done{rank}").read_text().split() for rank in alive]
        return killed, max(int(calls) for calls, _ in done), max(float(seconds) for _, seconds in done)


def wait(job: subprocess.Popen[str], folder: Path, alive: list[int], size: int) -> None:
    """Wait until all ranks that are alive are in a communicator of ``size`` ranks."""
    deadline = time.monotonic() + SECONDS_TO_GO_ON
    while not all((f := folder / f"at{rank}").exists() and f.read_text().split()[0] == str(size) for rank in alive):
        if job.poll() is not None:
            raise SystemExit(f"the job ended with {job.returncode}:\n{job.communicate()[1]}")
        if time.monotonic() > deadline:
            states = {rank: (folder / f"at{rank}").read_text() for rank in alive if (folder / f"at{rank}").exists()}
            raise SystemExit(
                f"not within {SECONDS_TO_GO_ON:g} s: all of {alive} go on among {size}; they are at {states}"
            )
        time.sleep(0.02)


def main() -> None:
    """Run jobs until so many ranks were killed."""
    parser = argparse.ArgumentParser(description="Kill ranks of elastic jobs, and compare what the others compute.")
    parser.add_argument("--kills", type=int, default=100, help="how many ranks to kill in all (100)")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of a job at its start (8)")
    parser.add_argument("--seed", type=int, default=1, help="of the first job (1)")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.seed)
        return
    mpi = find_launcher().version.splitlines()[0]
    print(
        f"{cpu_name()}, {os.cpu_count()} cores, {args.ranks} ranks; {platform.system()} {platform.machine()}, ", end=""
    )
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {mpi}", flush=True)
    killed, seed = 0, args.seed
    while killed < args.kills:
        more, calls, slowest = one_job(args.ranks, 2, seed)
        killed, seed = killed + more, seed + 1
        print(f"{killed:4} killed; job {seed - 1}: {calls} calls, slowest shrink {slowest:.2f} s", flush=True)
    print(f"{killed} ranks killed in {seed - args.seed} jobs, all sums of the others right, all exit codes 0")


if __name__ == "__main__":
    main()
