"""measure mpicoll, MPI, gloo and NCCL side by side

Measures collectives on several backends in one job, on the same buffers, and checks every element of their results.
Started by itself, the command starts its own ranks. Inside `mpicoll run`, mpirun or srun, it is one of the ranks.
Ctrl-C ends it after the current size, and keeps what was measured."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING, Any

from mpicoll.bench.options import OPTIONS, OUTPUTS, Options, bad, read
from mpicoll.cli.arguments import option
from mpicoll.errors import ArgumentError
from mpicoll.jobs.launcher import Job
from mpicoll.jobs.run import run
from mpicoll.launch.launch_env import check_not_alone, under_launcher

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


def add(p: argparse.ArgumentParser) -> None:
    p.add_argument("collective", help="names in MPI's or torch's spelling, with commas between them, or all")
    option(p, "-n RANKS", "the number of ranks to start (2)")
    for typed, about, default in OPTIONS:
        option(p, typed, about, default=default)


def handle(args: argparse.Namespace) -> int:
    """Start the ranks with the same arguments, or be one of them."""
    if under_launcher():
        return _rank(vars(args))
    ranks = read(vars(args) | {"n": args.n or "2"}).ranks
    return run(Job(["-m", "mpicoll", "bench", *args.typed], ranks))


def _rank(typed: dict[str, Any]) -> int:
    """Measure as one of the ranks. Rank 0 prints the first rank's error. It alone returns a code other than 0."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank = world.rank
    check_not_alone(world.size)
    options, error = None, ""
    try:
        options = read({**typed, "n": typed["n"] or str(world.size)})
        if options.ranks != world.size:
            raise bad("-n", f"{world.size}, the ranks that were started, or nothing", options.ranks)
    except ArgumentError as e:
        error = str(e)
    errors = [e for e in world.allgather(error) if e]
    code = 2
    if options is not None and not errors:
        try:
            code = _measure(options, world)
        except ArgumentError as e:  # the same on every rank, or one of rank 0's files
            errors = [str(e)]
    if errors and rank == 0:
        print(f"mpicoll: {errors[0]}", file=sys.stderr)
    # A failed check is no crash. Every rank ends as usual, after rank 0 has written its files.
    sys.stdout.flush()
    MPI.Finalize()
    return code if rank == 0 else 0


def _measure(options: Options, world: Intracomm) -> int:
    """Measure, and write the files on rank 0. Returns 1 if a result was wrong or nothing was measured."""
    from mpicoll.bench import plot, records, sweep

    report = sweep.run(options, world)
    if world.rank == 0:
        writes = dict(zip(OUTPUTS, (records.write_json, plot.draw), strict=True))
        files = {name: file for name in OUTPUTS if (file := getattr(options, name))}
        for name, file in files.items():
            try:
                writes[name](report, file)
            except OSError as e:
                raise bad(f"--{name}", "a file that can be written", f"{str(file)!r} ({e.strerror})") from None
        if report.interrupted:
            print("# interrupted: what is above was measured before")
        if files:
            print(f"# written: {', '.join(map(str, files.values()))}")
    if report.interrupted:
        from mpicoll.launch import board

        board.head.status = 128 + signal.SIGINT  # Open MPI's launcher would say more of such a code than the table has
        return 0
    return 1 if report.wrong or not report.rows else 0
