"""draw an algorithm as a picture, or as a page that plays it

Draws an algorithm, and proves it. Time goes from left to right. A column of cells is a rank's vector, and each
arrow is a message. The label of a cell names the ranks whose contributions it holds; a sum sign stands for all of them.
If everything comes from the root, the label names the block. The round of a message is one more than the longest chain
of messages that must come before it. If there are too many cells for arrows, each round is a matrix of ranks and
blocks. An HTML file is a page that plays the rounds in a browser, and needs nothing else. It says the time that
mpicoll simulate predicts. An algorithm that is wrong is drawn up to its first fault, which is red. The exit code is
then 1."""

from __future__ import annotations

import argparse
import sys

from mpicoll.cli.arguments import number, of_collective, option
from mpicoll.errors import ScheduleError


def add(p: argparse.ArgumentParser) -> None:
    of_collective(p)
    p.add_argument("algorithm", help="a name that `mpicoll algorithms` lists")
    option(p, "-n RANKS", "the number of ranks, 2 to 16 (4)", dest="size", type=int, default=4)
    about = "the picture or the page; its name chooses SVG, PNG or HTML"
    option(p, "-o FILE", about, dest="file", required=True)
    option(p, "--root RANK", "the root of bcast, reduce, gather and scatter (0)", type=int, default=0)
    option(p, "--segments N", "the segments of a pipelined algorithm (a few)", type=int)
    about = "the node of each rank, as 0,0,1, for an algorithm that goes by nodes (two nodes)"
    option(p, "--nodes NODES", about, type=_nodes)


def _nodes(text: str) -> list[int]:
    return [number(each, 0, " of a node") for each in text.split(",")]


def handle(args: argparse.Namespace) -> int:
    from mpicoll.analysis.drawing.draw import draw
    from mpicoll.bench.options import writable

    file = writable("draw", "-o", args.file)
    try:
        drawing = draw(args.collective, args.algorithm, args.size, args.root, args.segments, args.nodes)
        drawing.save(file)
        fault = drawing.fault
    except ScheduleError as e:  # there is nothing to draw
        fault = e
    if fault is not None:
        print(f"mpicoll: {fault}", file=sys.stderr)
    return 1 if fault else 0
