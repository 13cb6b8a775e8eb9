"""``mpicoll draw``: an algorithm as a picture, without MPI."""

from __future__ import annotations

import argparse
from pathlib import Path

from mpicoll.cli.arguments import collective, collectives, completes

__all__ = ["add"]

_TEXT = """\
Draws an algorithm, after it has proved it. Time goes from left to right. A column of cells is a rank's vector, and each
arrow is a message. The label of a cell names the ranks whose contributions it holds; a sum sign stands for all of them.
If everything comes from the root, the label names the block. The round of a message is one more than the longest chain
of messages that must come before it. If there are too many cells for arrows, each round is a matrix of ranks and
blocks.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``draw`` to the command line."""
    p = subparsers.add_parser("draw", help="draw an algorithm as a picture", description=_TEXT, allow_abbrev=False)
    completes(p.add_argument("collective", type=collective, help="its name in MPI's or torch's spelling"), collectives)
    p.add_argument("algorithm", help="a name that `mpicoll algorithms` lists")
    p.add_argument("-n", dest="size", type=int, default=4, metavar="RANKS", help="the number of ranks, 2 to 16 (4)")
    p.add_argument(
        "-o", dest="file", type=Path, metavar="FILE", required=True, help="the picture; its name chooses SVG or PNG"
    )
    p.add_argument(
        "--root", type=int, default=0, metavar="RANK", help="the root of bcast, reduce, gather and scatter (0)"
    )
    p.add_argument("--segments", type=int, metavar="N", help="the segments of a pipelined algorithm (a few)")
    p.set_defaults(handler=_handle)


def _handle(args: argparse.Namespace) -> int:
    from mpicoll.algorithms import algorithms, find
    from mpicoll.analysis.drawing.draw import draw
    from mpicoll.errors import ArgumentError, misspelt

    algorithm = find(args.collective, args.algorithm)
    if algorithm is None:
        known = [a.name for a in algorithms(args.collective)]
        raise ArgumentError("draw", "algorithm", f"one of {', '.join(known)}", misspelt(args.algorithm, known))
    draw(algorithm, args.size, args.file, args.root, args.segments)
    return 0
