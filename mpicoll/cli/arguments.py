"""Types of arguments that several commands take, and the files that arguments name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mpicoll.errors import misspelt

__all__ = ["collective", "collectives", "completes", "one_of", "ranks", "writing"]


def collective(text: str) -> str:
    """A collective in MPI's or torch's spelling, as MPI's name."""
    from mpicoll.collectives import COLLECTIVES, canonical

    found = canonical(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"expected one of {', '.join(COLLECTIVES)}; given {misspelt(text, COLLECTIVES)}"
        )
    return found


def one_of(known: Iterable[str]) -> Callable[[str], str]:
    """A type for argparse: one of these names."""
    names = list(known)

    def checked(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}; given {misspelt(text, names)}")
        return text

    return checked


def completes(argument: argparse.Action, names: Callable[[], Iterable[str]]) -> None:
    """Have argcomplete offer these names for the argument."""
    argument.completer = lambda **_: names()  # type: ignore[attr-defined]


def collectives() -> Iterable[str]:
    from mpicoll.collectives import COLLECTIVES

    return COLLECTIVES


def ranks(text: str) -> int:
    """A number of ranks."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of ranks, at least 1; given {text!r}")
    return int(text)


@contextmanager
def writing(file: Path, command: str, option: str) -> Iterator[None]:
    """Around the writing of a file that an option names. Raises ArgumentError if it cannot be written."""
    from mpicoll.errors import ArgumentError

    try:
        yield
    except OSError as e:
        raise ArgumentError(command, option, "a file that can be written", f"{str(file)!r} ({e.strerror})") from None
