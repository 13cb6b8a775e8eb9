"""``mpicoll report``: what the calls of a recording cost, and why."""

from __future__ import annotations

import argparse
from pathlib import Path

from mpicoll.cli.arguments import writing

_TEXT = """\
Reads a file that mpicoll.record or MPICOLL_TRACE has written. It says for each rank how much of the time was
communication: exposed (the program could do nothing else), the part of that which was waiting for ranks that came late,
and hidden behind the program's own work. Then it lists the lines of the program whose calls cost most, and says what
may make them faster.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = subparsers.add_parser("report", help="say what the calls of a recording cost, and why", description=_TEXT)
    p.add_argument("file", type=Path, metavar="FILE", help="the recording; Perfetto shows it, too")
    p.add_argument("--plot", metavar="FILE", help="also draw it as a PNG, SVG or PDF picture")
    p.add_argument("--last", type=float, metavar="MS", help="draw the last milliseconds alone")
    p.add_argument("--chakra", type=Path, metavar="FOLDER", help="also write MLCommons Chakra traces: FOLDER/RANK.et")
    p.set_defaults(handler=_handle)


def _handle(args: argparse.Namespace) -> int:
    from mpicoll.bench.options import outputs
    from mpicoll.profile.costs import costs
    from mpicoll.profile.recording import load
    from mpicoll.profile.text import text

    plot = outputs("report", plot=args.plot)["plot"]
    recording = load(args.file)
    print(text(args.file.name, recording, costs(recording)))
    if plot is not None:
        from mpicoll.profile.picture import draw

        draw(recording, plot, args.last)
    if args.chakra is not None:
        from mpicoll.profile import chakra

        with writing(args.chakra, "report", "--chakra"):
            chakra.write(recording, args.chakra)
    return 0
