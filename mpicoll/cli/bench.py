"""``mpicoll bench``: measures MPI, gloo and NCCL side by side."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mpicoll.bench.backends import BACKENDS
from mpicoll.cli.arguments import Refused, collectives, completes, writing
from mpicoll.errors import ArgumentError
from mpicoll.launch.launch_env import check_not_alone, under_launcher
from mpicoll.launch.launcher import Job
from mpicoll.launch.run import run

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from mpicoll.bench.options import Options

_TEXT = """\
Measures collectives on several backends in one job, on the same buffers, and checks every element of their results.
Started by itself, the command starts its own ranks. Inside `mpicoll run`, mpirun or srun, it is one of the ranks.
Ctrl-C ends it after the current size, and keeps what was measured.
"""
_NOT_HERE = {
    "-w": "each batch begins with two calls that are not timed",
    "-c": "every result is checked",
    "-m": "each call is timed by itself",
    "-i": "sizes grow by a factor (-f)",
    "-g": "the number of ranks is -n",
    "-t": "the number of ranks is -n",
}
"""Short flags of nccl-tests that bench does not have, and why."""
_HERE = "Of nccl-tests' flags there are -b, -e, -f, -d, -o and -r; -n is the number of ranks"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench`` to the command line."""
    p = subparsers.add_parser("bench", help="measure mpicoll, MPI, gloo and NCCL side by side", description=_TEXT)
    p.set_defaults(handler=_handle)
    completes(
        p.add_argument("collective", help="names in MPI's or torch's spelling, with commas between them, or all"),
        collectives,
    )
    p.add_argument("-n", default=None, metavar="RANKS", help="the number of ranks to start (2)")
    p.add_argument(
        "--backends",
        metavar="NAMES",
        help=f"some of {', '.join(BACKENDS)}; ratios are to the first (mpicoll,mpi, and gloo if torch is installed)",
    )
    p.add_argument("-b", "--min", default="8", metavar="BYTES", help="the smallest size (8); K, M and G are binary")
    p.add_argument("-e", "--max", default="64M", metavar="BYTES", help="the largest size (64M)")
    p.add_argument("-f", "--factor", default="2", metavar="N", help="the factor from one size to the next (2)")
    p.add_argument("-d", "--dtype", default="float32", metavar="NAME", help="the dtype, as torch names it (float32)")
    p.add_argument("-o", "--op", default="sum", metavar="NAME", help="the operation of reductions (sum)")
    p.add_argument(
        "-r", "--root", default="0", metavar="RANK", help="the root of bcast, reduce, gather and scatter (0)"
    )
    p.add_argument("--device", default="cpu", metavar="NAME", help="where the buffers are: cpu or cuda (cpu)")
    p.add_argument("--algorithms", metavar="NAMES", help="algorithms of mpicoll to measure, each on its own line")
    p.add_argument("--seconds", default="1.5", metavar="S", help="time to measure one size of one collective (1.5)")
    p.add_argument("--json", metavar="FILE", help="write everything that was measured to this file")
    p.add_argument("--csv", metavar="FILE", help="write the table to this file")
    p.add_argument("--plot", metavar="FILE", help="draw latency and bandwidth; the file's name chooses PNG, PDF or SVG")
    p.add_argument(
        "--wide", action="store_const", const="", help="print all columns of nccl-tests, out of place and in place"
    )
    for flag, why in _NOT_HERE.items():
        said = f": not supported: {why}. {_HERE}"
        p.add_argument(flag, action=Refused, const=said, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _handle(args: argparse.Namespace) -> int:
    """Start the ranks with the same arguments, or be one of them."""
    from mpicoll.bench.options import read
    from mpicoll.bench.progress import STOP, ask_to_stop, on_terminal

    if under_launcher():
        return _rank(vars(args))
    ranks = read(vars(args) | {"n": args.n or "2"}).ranks
    with TemporaryDirectory(prefix="mpicoll-") as folder:
        stop = Path(folder, "stop")
        os.environ.update({**on_terminal(), STOP: str(stop)})
        program = ["-m", "mpicoll", "bench", *args.typed]
        code = run(Job(program, ranks, interrupted=partial(ask_to_stop, stop)))
        return 128 + signal.SIGINT if stop.exists() else code


def _rank(typed: dict[str, Any]) -> int:
    """Measure as one of the ranks. Rank 0 prints the first rank's error. It alone returns a code other than 0."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank = world.rank
    check_not_alone(world.size)
    options, error = _read(typed, world.size)
    errors = [e for e in world.allgather(error) if e]
    code = 2
    if options is not None and not errors:
        try:
            code = _measure(options, world)
        except ArgumentError as e:  # the same on every rank
            errors = [str(e)]
    if errors and rank == 0:
        print(f"mpicoll: {errors[0]}", file=sys.stderr)
    # A failed check is no crash. Every rank ends as usual, after rank 0 has written its files.
    sys.stdout.flush()
    MPI.Finalize()
    return code if rank == 0 else 0


def _read(typed: dict[str, Any], size: int) -> tuple[Options | None, str | None]:
    """The options, or what is wrong with them."""
    from mpicoll.bench.options import bad, read

    try:
        options = read({**typed, "n": typed["n"] or str(size)})
        if options.ranks != size:
            raise bad("-n", f"{size}, the ranks that were started, or nothing", options.ranks)
    except ArgumentError as e:
        return None, str(e)
    return options, None


def _measure(options: Options, world: Intracomm) -> int:
    """Measure, and write the files on rank 0. Returns 1 if a result was wrong or nothing was measured."""
    from mpicoll.bench import plot, records, sweep

    report = sweep.run(options, world)
    if world.rank == 0:
        writes = {"json": records.write_json, "csv": records.write_csv, "plot": plot.draw}
        files = {name: file for name in writes if (file := getattr(options, name))}
        for name, file in files.items():
            with writing(file, "bench", f"--{name}"):
                writes[name](report, file)
        if report.interrupted:
            print("# interrupted: what is above was measured before")
        if files:
            print(f"# written: {', '.join(map(str, files.values()))}")
    return 1 if report.wrong or not report.rows else 0
