"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse

__all__ = ["collective", "ranks"]


def collective(text: str) -> str:
    """A collective in MPI's or torch's spelling, as MPI's name."""
    from mpicoll.collectives import COLLECTIVES, canonical

    found = canonical(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(COLLECTIVES)}; given {text!r}")
    return found


def ranks(text: str) -> int:
    """A number of ranks."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of ranks, at least 1; given {text!r}")
    return int(text)
