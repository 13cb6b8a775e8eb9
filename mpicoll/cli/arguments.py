"""How commands add their options, types of arguments that several commands take, and the files that arguments name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.errors import ArgumentError

if TYPE_CHECKING:
    from mpicoll.algorithms import Algorithm
    from mpicoll.algorithms.steps import Nodes


def option(parser: argparse._ActionsContainer, typed: str, about: str, **more: Any) -> argparse.Action:
    """Add an option that is ``typed`` so: ``-o --output FILE``. If no value follows its names, it is a flag."""
    words = typed.split()
    names = [word for word in words if word.startswith("-")]
    value: dict[str, Any] = {"metavar": words[-1]} if len(names) < len(words) else {"action": "store_true"}
    return parser.add_argument(*names, help=about, **value, **more)


def one_of(names: Callable[[], Iterable[str]]) -> Callable[[str], str]:
    """A type for argparse: one of these names."""

    def checked(text: str) -> str:
        known = list(names())
        if text not in known:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(known)}; given {text!r}")
        return text

    return checked


def completes(argument: argparse.Action, names: Callable[[], Iterable[str]]) -> None:
    """Have argcomplete offer these names for the argument."""
    argument.completer = lambda **_: names()  # type: ignore[attr-defined]


def collectives() -> Iterable[str]:
    from mpicoll.algorithms.collectives import COLLECTIVES

    return COLLECTIVES


def _collective(text: str) -> str:
    """A collective in MPI's or torch's spelling, as MPI's name."""
    from mpicoll.algorithms.collectives import canonical

    return canonical(text) or one_of(collectives)(text)  # this raises the error


def of_collective(parser: argparse.ArgumentParser, nargs: str | None = None, otherwise: str = "") -> None:
    """Add the argument that names a collective. ``otherwise`` is what it means to leave it out."""
    about = f"its name in MPI's or torch's spelling{otherwise and f' ({otherwise})'}"
    completes(parser.add_argument("collective", nargs=nargs, type=_collective, help=about), collectives)


def chosen(command: str, collective: str | None, name: str | None) -> list[Algorithm]:
    """The algorithm with this name, or all; of this collective, or of all. Raises ArgumentError if there is none."""
    from mpicoll.algorithms import algorithms

    known = list(algorithms(collective))
    found = [a for a in known if name in (None, a.name)]
    if not found:
        names = [a.name for a in known]
        raise ArgumentError(command, "algorithm", f"one of {', '.join(names)}", repr(name))
    return found


def number(text: str, least: int = 0, of: str = "") -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a number{of}, at least {least}; given {text!r}")
    return int(text)


def ranks(text: str) -> int:
    return number(text, 1, " of ranks")


def _nodes(text: str) -> int | list[str]:
    return text.split(",") if "," in text else ranks(text)


def placed(parser: argparse.ArgumentParser, otherwise: str) -> None:
    """Add the option that says where the ranks are, for algorithms that go by their nodes."""
    about = "the nodes of the ranks: how many, filled one after the other, or the node of each rank, as 0,0,1"
    option(parser, "--nodes N|NODES", f"{about} ({otherwise})", type=_nodes)


def placement(command: str, given: int | list[str], size: int) -> Nodes:
    """Where so many ranks are, as the option that ``placed`` adds says it."""
    from mpicoll.algorithms.steps import Nodes

    if isinstance(given, int) and given <= size:
        return Nodes.block(size, given)
    if isinstance(given, list) and len(given) == size:
        return Nodes.named(given)
    if isinstance(given, int):
        raise ArgumentError(command, "--nodes", f"at most the {size} ranks", str(given))
    raise ArgumentError(command, "--nodes", f"the nodes of {size} ranks", ",".join(given))


@contextmanager
def writing(file: Path, command: str, option: str) -> Iterator[None]:
    """Around the writing of a file that an option names. Raises ArgumentError if it cannot be written."""
    try:
        yield
    except OSError as e:
        raise ArgumentError(command, option, "a file that can be written", f"{str(file)!r} ({e.strerror})") from None
