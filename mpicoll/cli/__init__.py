"""The command line: one file a command. The file's docstring is what the command says of itself: a line in the list of
commands, and then the text of its --help. ``add`` adds its arguments, and ``handle`` returns its exit code.

Only the file of the command that is given is imported: the start of ``mpicoll run`` took 6 % more with all of them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import mpicoll
from mpicoll.errors import MpicollError
from mpicoll.launch.launch_env import under_launcher

COMMANDS = ("run", "doctor", "bench", "report", "algorithms", "verify", "draw", "simulate", "slurm")
_TEXT = """\
MPI collectives for any array: start ranks, measure, prove and predict. `mpicoll COMMAND --help` describes a command.
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    commands: dict[str, Parser]
    """Each command's own parser. Only the parser of the whole command line has it."""

    def __init__(self, prog: str | None = None, **named: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **named)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """For arguments that it does not have."""
        given = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")] or unknown
        instead = self.get_default("instead") or ""
        self.error(f"not an argument of this command: {', '.join(map(repr, given))}{instead}")


def parser(commands: Iterable[str] = COMMANDS) -> Parser:
    """The parser of the whole command line, or of these commands alone. The manual is made of it, too."""
    whole = Parser("mpicoll", description=_TEXT)
    whole.add_argument("--version", action="version", version=f"mpicoll {mpicoll.__version__}")
    subparsers = whole.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for name in commands:
        file = import_module(f"mpicoll.cli.{name}")
        about, _, text = (file.__doc__ or "").partition("\n\n")
        command = subparsers.add_parser(name, help=about, description=text, usage=getattr(file, "USAGE", None))
        command.set_defaults(handle=file.handle)
        file.add(command)
    whole.commands = subparsers.choices
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``mpicoll`` with ``argv`` (the process's own by default) and return its exit code."""
    given = sys.argv[1:] if argv is None else argv
    whole = parser([name for name in given[:1] if name in COMMANDS] or COMMANDS)
    try:
        args, unknown = whole.parse_known_args(given)
        args.typed = [*given[1:]]
        args.parser = whole.commands[vars(args).pop("command")]  # whose name is no argument of its own
        if unknown:
            args.parser.refuse(unknown)
        code: int = args.handle(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads what is printed has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python's end finds nothing wrong with it
        return 1
    except (MpicollError, OSError, KeyboardInterrupt, MemoryError) as error:
        if under_launcher():
            raise  # a rank says where, and ends the job
        said = f"mpicoll: {error}"
        if isinstance(error, KeyboardInterrupt):
            said = "mpicoll: interrupted"
        elif isinstance(error, MemoryError):
            said = f"mpicoll {given[0]}: there is not enough memory for this: take fewer ranks or smaller sizes"
        print(said, file=sys.stderr)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 2
    return code
