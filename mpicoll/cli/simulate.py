"""predict which algorithm is the fastest

Predicts how long each algorithm of a collective takes on a described machine, for any number of ranks, and says which
is the fastest for which vectors. It needs no MPI."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mpicoll.cli.arguments import chosen, of_collective, option, ranks
from mpicoll.errors import ArgumentError
from mpicoll.units import count, nbytes, size_text

if TYPE_CHECKING:
    from mpicoll.analysis.cost.comparison import Comparison

_bad = partial(ArgumentError, "simulate")


def add(p: argparse.ArgumentParser) -> None:
    of_collective(p)
    option(p, "-n RANKS", "the number of ranks (2)", dest="ranks", type=ranks, default=2)
    about = "the name of a machine, or a file in JSON or TOML that describes one (laptop)"
    option(p, "--machine NAME|FILE", about, default="laptop")
    option(p, "--nodes N", "the nodes of the ranks (as many as the machine fills)", type=ranks)
    about = "bytes of the vector, or a range in which each size doubles (1K:64M)"
    option(p, "--sizes LOW:HIGH", about, type=_sizes)
    option(p, "--algorithms NAMES", "names from `mpicoll algorithms`, with commas between them (all)")
    option(p, "--plot FILE", "draw the crossover chart; the file's name chooses PNG, PDF or SVG")
    option(p, "--json FILE", "write everything")
    option(p, "--goal FILE", "write one algorithm for one size as GOAL text, for LogGOPSim")


def _sizes(text: str) -> list[int]:
    found = [nbytes(part) for part in text.split(":")]
    sizes = [n for n in found if n is not None]
    if len(sizes) != len(found) or len(sizes) > 2 or sizes[0] > sizes[-1]:
        raise argparse.ArgumentTypeError(f"expected bytes, or LOW:HIGH, with K, M or G (1K:64M); given {text!r}")
    low, high = sizes[0], sizes[-1]
    return [low << k for k in range((high // low).bit_length())]


def handle(args: argparse.Namespace) -> int:
    from mpicoll.algorithms import schedule
    from mpicoll.algorithms.collectives import COLLECTIVES
    from mpicoll.analysis.cost.comparison import compared, table
    from mpicoll.analysis.cost.goal import write
    from mpicoll.analysis.cost.presets import MACHINES, read
    from mpicoll.bench.options import outputs

    ranks = args.ranks
    machine = MACHINES[args.machine] if args.machine in MACHINES else read(Path(args.machine))
    asked = [] if args.algorithms is None else args.algorithms.split(",")
    names = list(dict.fromkeys(each.strip() for each in asked))
    for each in names:
        chosen("simulate", "--algorithms", args.collective, each)  # raises ArgumentError
    if args.nodes is not None:
        machine = machine.holding(ranks, args.nodes)
    moves = COLLECTIVES[args.collective].moves
    if args.sizes is not None and not moves:
        raise _bad("--sizes", f"nothing: a {args.collective} moves no data", " to ".join(map(size_text, args.sizes)))
    sizes = args.sizes or (_sizes("1K:64M") if moves else [0])
    plot, record, goal = outputs("simulate", plot=args.plot, json=args.json, goal=args.goal).values()
    if plot and len(sizes) < 2:
        expected = "at least two sizes in --sizes, for lines" if moves else f"nothing: a {args.collective} has no sizes"
        raise _bad("--plot", expected, str(plot))
    if goal and (len(names) != 1 or len(sizes) != 1):
        given = f"{args.algorithms or 'all'} and {len(sizes)} sizes"
        raise _bad("--goal", "one of --algorithms and one size in --sizes", given)
    print(f"# {args.collective}, {count(ranks, 'rank')} on {machine.name}: {machine.source}", flush=True)
    found = compared(args.collective, names, ranks, machine, sizes)
    print(table(found))
    if plot:
        draw(found, plot)
    if record:
        record.write_text(json.dumps(found.as_dict(), indent=1) + "\n")
    if goal:
        nodes, of = machine.nodes(ranks), partial(schedule, args.collective, names[0])
        with goal.open("w") as file:
            write(file, lambda rank: of(rank, ranks, 0, sizes[0], nodes), ranks, sizes[0], machine)
    return 0


def draw(found: Comparison, file: Path) -> None:
    """Draw the time over the size, a line for each algorithm, on the colour of the one that is the fastest there."""
    from mpicoll.bench.plot import Panel, draw_panels

    lines = {name: [*zip(found.sizes, times, strict=True)] for name, times in found.seconds.items()}
    grounds = [(r.algorithm, r.first / 2**0.5, r.last * 2**0.5) for r in found.ranges]
    panel = Panel("size (bytes)", "time; ground: the fastest", size_text, lines, grounds=grounds)
    title = f"{found.collective}, {count(found.ranks, 'rank')} on {found.machine.name}: the model"
    draw_panels(file, {title: (panel,)})
