"""``mpicoll run``: start a program's ranks with the environment's MPI."""

from __future__ import annotations

import argparse
import shlex

from mpicoll.cli.arguments import ranks
from mpicoll.launch import launcher

__all__ = ["add"]

_TEXT = """\
Starts N ranks of a Python program with the MPI of this environment. An uncaught exception in one rank ends all ranks.
In a batch job, the ranks run on the nodes of the job. Elsewhere they run on this machine, or on the nodes of
a hostfile.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``run`` to the command line."""
    parser = subparsers.add_parser(
        "run",
        help="start the ranks of a program",
        description=_TEXT,
        usage="mpicoll run -n N [option ...] (script.py | -m module | -c code) [argument ...]",
        allow_abbrev=False,
    )
    parser.add_argument("-n", "-np", dest="nprocs", type=ranks, required=True, metavar="N", help="the number of ranks")
    parser.add_argument(
        "--hostfile", metavar="FILE",
        help="the nodes to run on, one per line: `node1 slots=4` for Open MPI, `node1:4` for MPICH and Intel MPI",
    )  # fmt: skip
    parser.add_argument(
        "--launcher-args", type=_words, default=[], metavar="FLAGS",
        help="flags for the MPI's own launcher, in quotes: --launcher-args='--map-by numa -x NAME'",
    )  # fmt: skip
    parser.add_argument(
        "--elastic", action="store_true",
        help="go on when ranks are lost: the others get RankLost, and can shrink the communicator (Open MPI 5)",
    )  # fmt: skip
    parser.add_argument(
        "--gpu", action="store_true",
        help="let the wheel of Open MPI take GPU memory, through the UCX of the extra `cuda` (never run on a GPU)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print the command instead of running it")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    parser.add_argument("-c", dest="code", nargs=argparse.REMAINDER, help="run code, as python -c does")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="the script, and the arguments to pass to it")
    parser.set_defaults(handler=_run, parser=parser)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected words as a shell takes them ({error}); given {text!r}") from error


def _run(args: argparse.Namespace) -> int:
    flag, rest = "", args.script[1:] if args.script[:1] == ["--"] else args.script
    for name, given in (("-m", args.module), ("-c", args.code)):
        if given is not None:
            flag, rest = name, given + args.script
    if not rest:
        args.parser.error(f"expected {'an argument after ' + flag if flag else 'a script, -m module or -c code'}")
    program = [flag, *rest] if flag else rest
    return launcher.run(
        program,
        args.nprocs,
        hostfile=args.hostfile,
        flags=args.launcher_args,
        dry_run=args.dry_run,
        outlives=args.elastic,
        gpu=args.gpu,
    )
