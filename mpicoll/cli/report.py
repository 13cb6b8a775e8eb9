"""say what the calls of a recording cost, and why

Reads a file that mpicoll.record or MPICOLL_TRACE has written. It says for each rank how much of the time was
communication: exposed (the program could do nothing else), the part of that which was waiting for ranks that came late,
and hidden behind the program's own work. Then it lists the lines of the program whose calls cost most."""

from __future__ import annotations

import argparse
from pathlib import Path

from mpicoll.cli.arguments import option


def add(p: argparse.ArgumentParser) -> None:
    p.add_argument("file", type=Path, metavar="FILE", help="the recording; Perfetto shows it, too")
    option(p, "--plot FILE", "also draw it as a PNG, SVG or PDF picture")
    option(p, "--last MS", "draw only the last milliseconds", type=float)


def handle(args: argparse.Namespace) -> int:
    from mpicoll.bench.options import outputs
    from mpicoll.profile.costs import costs
    from mpicoll.profile.recording import load
    from mpicoll.profile.report import draw, text

    plot = outputs("report", plot=args.plot)["plot"]
    recording = load(args.file)
    print(text(args.file.name, recording, costs(recording)))
    if plot is not None:
        draw(recording, plot, args.last)
    return 0
