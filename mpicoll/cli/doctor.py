"""``mpicoll doctor``: says what this machine and this job will do, and what is wrong with them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

__all__ = ["add"]

_TEXT = """\
Says what this machine and this job will do: how the ranks were started, whether they find each other, which cores,
memory and GPUs they have, and which algorithms mpicoll takes. Each problem comes with its remedy. Started as the ranks
of a job, with mpicoll run, mpirun or srun, it looks at all ranks, and one of them prints the report. The exit code is 1
if there is a problem. With --dump, it asks a job that runs what it does.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``doctor`` to the command line."""
    p = subparsers.add_parser(
        "doctor", help="find out what is wrong with a machine or a job", description=_TEXT, allow_abbrev=False
    )
    p.add_argument("--json", metavar="FILE", help="write the findings to this file as JSON; - prints them instead")
    p.add_argument(
        "--dump",
        metavar="PID",
        type=int,
        help="ask the job of this rank's process what its ranks do, and print the folder of their files",
    )
    p.set_defaults(handler=_handle)


def _handle(args: argparse.Namespace) -> int:
    from mpicoll.doctor.examination import examine
    from mpicoll.guard.files.demand import ask_for_dump

    if args.dump is not None:
        print(ask_for_dump(args.dump))
        return 0
    report = examine()
    if report is None:
        return 0
    as_json = json.dumps(report.as_dict(), indent=1)
    if args.json == "-":
        print(as_json, flush=True)
    else:
        if args.json:
            _write(Path(args.json), as_json + "\n")
        print(report.text(), end="", flush=True)
    return 1 if report.problems else 0


def _write(file: Path, text: str) -> None:
    from mpicoll.errors import ArgumentError

    try:
        file.write_text(text)
    except OSError as e:
        raise ArgumentError("doctor", "--json", "a file that can be written", f"{str(file)!r} ({e.strerror})") from None
