"""The command line: one file a subcommand, each with ``add(subparsers)`` and a handler that returns the exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import mpicoll
from mpicoll.cli import algorithms, bench, draw, run, simulate, slurm, verify
from mpicoll.errors import MpicollError
from mpicoll.machine.alone import under_launcher

__all__ = ["main"]

COMMANDS = (run, bench, algorithms, verify, draw, simulate, slurm)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mpicoll`` with ``argv`` (the process's own by default) and return its exit code."""
    parser = Parser("mpicoll", description="MPI collectives for any array: start ranks, measure.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"mpicoll {mpicoll.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for each in COMMANDS:
        each.add(subparsers)
    args = parser.parse_args(argv)
    try:
        code: int = args.handler(args)
    except MpicollError as error:
        if under_launcher():
            raise  # a rank says where, and ends the job
        print(f"mpicoll: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads what is printed has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
