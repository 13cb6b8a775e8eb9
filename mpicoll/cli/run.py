"""``mpicoll run``: start a program's ranks with the environment's MPI."""

from __future__ import annotations

import argparse

from mpicoll import launch


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of ranks, at least 1; given {text!r}")
    return int(text)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "run",
        help="start a program's ranks",
        description="Start N ranks of a Python program with the MPI of this environment. An uncaught exception in one "
        "rank ends them all.",
        usage="mpicoll run -n N [--dry-run] (script.py | -m module | -c code) [argument ...]",
        allow_abbrev=False,
    )
    parser.add_argument("-n", dest="nprocs", type=_ranks, required=True, metavar="N", help="the number of ranks")
    parser.add_argument("--dry-run", action="store_true", help="print the command instead of running it")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    parser.add_argument("-c", dest="code", nargs=argparse.REMAINDER, help="run code, as python -c does")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="the script and its arguments, passed on as they are")
    parser.set_defaults(handler=_run, parser=parser)


def _run(args: argparse.Namespace) -> int:
    flag, rest = "", args.script[1:] if args.script[:1] == ["--"] else args.script
    for name, given in (("-m", args.module), ("-c", args.code)):
        if given is not None:
            flag, rest = name, given + args.script
    if not rest:
        args.parser.error(f"expected {'an argument after ' + flag if flag else 'a script, -m module or -c code'}")
    launch.run([flag, *rest] if flag else rest, args.nprocs, dry_run=args.dry_run)
    return 0
