"""``mpicoll tune``: measures which algorithms are fast on this machine, and keeps it for later jobs."""

from __future__ import annotations

import argparse
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from mpicoll.cli.arguments import completes, ranks, writing
from mpicoll.errors import ArgumentError, StateError, misspelt
from mpicoll.launch import launcher
from mpicoll.launch.alone import under_launcher
from mpicoll.units import nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpicoll.bench.tune.tuner import Group

__all__ = ["add"]

MINUTE = 60.0
"""Seconds that a run takes if the command line says nothing else."""
LONG = 16 << 20
"""Bytes. Longer vectors come after all shorter ones: they take half of the time. Meanwhile, what won here serves them,
too: of 480 such cells of four CPUs, 3 were slower then than what runs otherwise, by at most 6 %."""
_TEXT = """\
Measures which algorithms are faster than the MPI's own calls on this machine, and writes them to a table. Later jobs on
it choose from there. Tune while nothing else runs. Ctrl-C keeps what was measured, and the next run goes on from there.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``tune`` to the command line."""
    p = subparsers.add_parser(
        "tune",
        help="measure which algorithms are fast here, for later jobs",
        description=_TEXT,
        usage="mpicoll tune [COLLECTIVE ...] [option ...]\n       mpicoll tune --why COLLECTIVE SIZE [-n RANKS]",
    )
    completes(
        p.add_argument("collectives", nargs="*", metavar="COLLECTIVE", help="names in MPI's or torch's spelling (all)"),
        _known,
    )
    p.add_argument("-n", default=None, type=_numbers, metavar="RANKS", help="numbers of ranks, as 2,3,4 (2)")
    p.add_argument("--min", default=None, type=_size, metavar="BYTES", help="the smallest size (16K)")
    p.add_argument("--max", default=None, type=_size, metavar="BYTES", help="the largest size (64M)")
    p.add_argument("--budget", default=None, type=_seconds, metavar="TIME", help="how long to measure: 30s, 5m (1m)")
    p.add_argument(
        "--for", dest="trace", metavar="TRACE", type=Path,
        help="measure the calls of this trace (MPICOLL_TRACE), those first that took most of its time",
    )  # fmt: skip
    p.add_argument(
        "-o",
        dest="output",
        metavar="FILE",
        type=Path,
        help="the table to add to, or to ask with --why (the user's own)",
    )
    p.add_argument(
        "--plot", metavar="FILE", type=Path, help="draw what the table has; the name chooses PNG, PDF or SVG"
    )
    p.add_argument("--why", action="store_true", help="say which algorithm a call would take here, and why")
    p.set_defaults(handler=_handle)


def _numbers(text: str) -> list[int]:
    found = [*dict.fromkeys(ranks(part) for part in text.split(","))]
    if min(found) < 2:
        raise argparse.ArgumentTypeError(f"expected numbers of ranks, each at least 2; given {text!r}")
    return found


def _size(text: str) -> int:
    n = nbytes(text)
    if n is None or n % 4:
        raise argparse.ArgumentTypeError(f"expected bytes of float32, with K, M or G if need be; given {text!r}")
    return n


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)", text)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a time, as 30s, 5m or 1h; given {text!r}")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _bad(argument: str, expected: str, given: object) -> ArgumentError:
    return ArgumentError("tune", argument, expected, str(given))


def _handle(args: argparse.Namespace) -> int:
    from mpicoll.bench.report.style import check_drawable

    if under_launcher():
        raise StateError("tune: this process is a rank of a job. Start `mpicoll tune` by itself: it starts its ranks")
    if args.why:
        return _why(args)
    if args.plot:
        check_drawable("tune", args.plot)
    if os.environ.get("MPICOLL_REPRODUCIBLE") == "1":
        raise _bad("MPICOLL_REPRODUCIBLE", "0: reproducible reductions have one algorithm each", "1")
    return _tune(args)


def _tune(args: argparse.Namespace) -> int:
    from mpicoll.bench.tune import plot
    from mpicoll.bench.tune.file import TableFile
    from mpicoll.bench.tune.launches import Progress, launch
    from mpicoll.bench.tune.tuner import Tuner
    from mpicoll.calls.tables import user_file

    path = args.output or user_file()
    file = TableFile(path)
    try:  # before anything is measured
        file.records()
    except ArgumentError as error:
        raise _bad("-o", "a table that mpicoll tune has written", f"{str(path)!r} ({error})") from None
    with writing(path, "tune", "-o"):
        file.prepare()
    budget = args.budget or MINUTE
    tuner = Tuner(_groups(args), file, budget, launch)
    with writing(path, "tune", "-o"), Progress(budget) as progress:
        tuner.run(progress)
    for record in tuner.records.values():
        for line in record.summary():
            print(line)
    if tuner.interrupted:
        print("# interrupted: the next run goes on from here")
    print(f"# written: {path}" if path.exists() else "# nothing was measured")
    if args.plot and path.exists():
        with writing(args.plot, "tune", "--plot"):
            plot.draw(file.records(), args.plot)
        print(f"# written: {args.plot}")
    return 128 + signal.SIGINT if tuner.interrupted else 0


def _groups(args: argparse.Namespace) -> Sequence[Group]:
    """What is to be measured, in its order."""
    from mpicoll.bench.tune.cells import CASES, Cell, sizes
    from mpicoll.bench.tune.traced import groups_of
    from mpicoll.bench.tune.tuner import Group

    names = [_collective(text) for text in args.collectives]
    if args.trace is not None:
        return groups_of(args.trace, names, args.n, args.min, args.max)
    low, high = args.min or 16 << 10, args.max or 64 << 20
    if low > high:
        raise _bad("--min", f"no more than --max ({high} bytes)", low)
    cases = [case for case in CASES if not names or Cell(case, 0).operation in names]
    groups = [Group(case, n, tuple(sizes(case, low, high))) for case in cases for n in args.n or [2]]
    parts = [part for group in groups for part in _in_two(group)]
    return sorted(parts, key=lambda part: min(part.sizes) > LONG)


def _in_two(group: Group) -> Sequence[Group]:
    """The group's vectors of up to ``LONG`` bytes, and the longer ones. Where one algorithm serves all sizes, they stay
    together."""
    from mpicoll.bench.tune.cells import Cell

    parts = [tuple(size for size in group.sizes if (size > LONG) == rest) for rest in (False, True)]
    together = not Cell(group.case, 0).extent_is_common
    return [group] if together or not all(parts) else [group._replace(sizes=part) for part in parts]


def _known() -> list[str]:
    """The methods that can be measured."""
    from mpicoll.bench.tune.cells import CASES, Cell

    return [*dict.fromkeys(Cell(case, 0).operation for case in CASES)]


def _collective(text: str) -> str:
    from mpicoll.algorithms.collectives import canonical

    known = _known()
    name = text if text in known else canonical(text)
    if name not in known:
        raise _bad("COLLECTIVE", f"one of {', '.join(known)}", misspelt(text, known))
    return name


def _why(args: argparse.Namespace) -> int:
    if len(args.collectives) != 2:
        raise _bad("--why", "a collective and a size, as allreduce 1M", " ".join(args.collectives) or "neither")
    name, size = _collective(args.collectives[0]), nbytes(args.collectives[1])
    if size is None or size % 4:
        raise _bad("--why", "bytes of float32, with K, M or G if need be", repr(args.collectives[1]))
    for option in ("min", "max", "budget", "trace", "plot"):
        if (given := getattr(args, option)) is not None:
            raise _bad("--for" if option == "trace" else f"--{option}", "nothing beside --why", given)
    if args.output:
        os.environ["MPICOLL_TABLE"] = str(args.output.absolute())
    numbers = args.n or [2]
    return max(launcher.attended(["-m", "mpicoll.bench.tune.why", name, str(size)], n, lambda: None) for n in numbers)
