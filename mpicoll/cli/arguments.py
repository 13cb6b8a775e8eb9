"""How commands add their options, and types of arguments that several commands take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from mpicoll.errors import ArgumentError

if TYPE_CHECKING:
    from mpicoll.algorithms import Algorithm


def option(parser: argparse._ActionsContainer, typed: str, about: str, **more: Any) -> argparse.Action:
    """Add an option that is ``typed`` so: ``-o --output FILE``. If no value follows its names, it is a flag."""
    words = typed.split()
    names = [word for word in words if word.startswith("-")]
    value: dict[str, Any] = {"metavar": words[-1]} if len(names) < len(words) else {"action": "store_true"}
    return parser.add_argument(*names, help=about, **value, **more)


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """A type for argparse: one of these names."""

    def checked(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}; given {text!r}")
        return text

    return checked


def _collective(text: str) -> str:
    """A collective in MPI's or torch's spelling, as MPI's name."""
    from mpicoll.algorithms.collectives import COLLECTIVES, canonical

    return canonical(text) or one_of(COLLECTIVES)(text)  # this raises the error


def of_collective(parser: argparse.ArgumentParser, nargs: str | None = None, otherwise: str = "") -> None:
    """Add the argument that names a collective. ``otherwise`` is what it means to leave it out."""
    about = f"its name in MPI's or torch's spelling{otherwise and f' ({otherwise})'}"
    parser.add_argument("collective", nargs=nargs, type=_collective, help=about)


def chosen(command: str, argument: str, collective: str | None, name: str | None) -> list[Algorithm]:
    """The algorithm with this name, or all; of this collective, or of all. Raises ArgumentError if there is none."""
    from mpicoll.algorithms import algorithms

    known = list(algorithms(collective))
    found = [a for a in known if name in (None, a.name)]
    if not found:
        names = [a.name for a in known]
        raise ArgumentError(command, argument, f"one of {', '.join(names)}", repr(name))
    return found


def number(text: str, least: int = 0, of: str = "") -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a number{of}, at least {least}; given {text!r}")
    return int(text)


def ranks(text: str) -> int:
    return number(text, 1, " of ranks")
