"""prove that algorithms are right

Proves that algorithms compute what their collectives mean. It runs the schedules of all ranks on symbols. In the proof,
each message waits until its receiver is ready. For each algorithm, it prints the numbers of ranks and the roots that it
proved. With up to 16 ranks, a pipelined algorithm is proved with 1, 2 and 5 segments. With more, it proves only the
first and the last root, two segments, and fewer placements of the ranks. It also prints two counts for the largest
number of ranks: the messages, and the depth. The depth is how often a contribution is combined on its way into the
result, and so how often a 16-bit reduction rounds it. The exit code is 1 if a proof fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpicoll.cli.arguments import chosen, of_collective, option
from mpicoll.errors import ScheduleError

if TYPE_CHECKING:
    from mpicoll.algorithms import Algorithm
    from mpicoll.analysis.proof.cases import Case

_ROW = "{:14} {:{}}  {:>8}  {:11} {:>9} {:>6} {:>8}"
USAGE = "mpicoll verify (COLLECTIVE [ALGORITHM] | --all) [-n RANKS]"


def add(p: argparse.ArgumentParser) -> None:
    of_collective(p, "?")
    about = "a name that `mpicoll algorithms` lists (all algorithms of the collective)"
    p.add_argument("algorithm", nargs="?", help=about)
    option(p, "--all", "prove all algorithms of all collectives")
    about = "the numbers of ranks: N or FIRST:LAST (1:16)"
    option(p, "-n RANKS", about, dest="sizes", type=_sizes, default=range(1, 17))


def _sizes(text: str) -> range:
    first, _, last = text.partition(":")
    last = last if ":" in text else first
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"expected N or FIRST:LAST, numbers of ranks from 1 on; given {text!r}")
    return range(int(first), int(last) + 1)


def handle(args: argparse.Namespace) -> int:
    from mpicoll.analysis.proof.cases import cases

    if args.all == (args.collective is not None):
        args.parser.error("expected a collective or --all")
    found = chosen("verify", "algorithm", args.collective, args.algorithm)
    width = max(len(name) for name in ("algorithm", *(a.name for a in found)))
    print(_ROW.format("collective", "algorithm", width, "ranks", "roots", "messages", "depth", "seconds"))
    failed = False
    for algorithm in found:
        try:
            print(_proved(algorithm, args.sizes, [*cases(algorithm, args.sizes)], width), flush=True)
        except ScheduleError as error:
            failed = True
            print(f"mpicoll: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def _proved(algorithm: Algorithm, sizes: range, cases: Sequence[Case], width: int) -> str:
    """Prove the algorithm; the line about it."""
    from mpicoll.algorithms.collectives import COLLECTIVES
    from mpicoll.analysis.proof.cases import FEW, prove

    start = time.perf_counter()
    proof = None
    for case in cases:
        proof = prove(algorithm, *case)
    if proof is None:  # it declines them all, and says why
        prove(algorithm, sizes[-1])
    assert proof is not None
    first, last = cases[0].size, cases[-1].size
    ranks = f"{first}:{last}" if len(sizes) > 1 else str(first)
    roots = "every" if last <= FEW else f"every to {FEW}"
    if not COLLECTIVES[algorithm.collective].rooted:
        roots = "-"
    seconds = f"{time.perf_counter() - start:.2f}"
    return _ROW.format(algorithm.collective, algorithm.name, width, ranks, roots, proof.messages, proof.depth, seconds)
