"""find out what is wrong with a machine or a job

Says what this machine and this job will do: how the ranks were started, whether they find each other, which cores,
memory and GPUs they have, and which algorithms mpicoll takes. Each problem comes with its remedy. Started as the ranks
of a job, with mpicoll run, mpirun or srun, it looks at all ranks, and one of them prints the report. The exit code is 1
if there is a problem, and with --log only if MPI does not connect the ranks."""

from __future__ import annotations

import argparse
import sys

from mpicoll.cli.arguments import option


def add(p: argparse.ArgumentParser) -> None:
    about = "for job scripts: print where the ranks are and what is wrong to stderr as well, for the job's log"
    option(p, "--log", about)


def handle(args: argparse.Namespace) -> int:
    from mpicoll.doctor import examine

    report = examine()
    if report is None:
        return 0
    if args.log:  # first: the folder of the report may be full
        print(report.text(short=True), end="", file=sys.stderr, flush=True)
    print(report.text(), end="", flush=True)
    if args.log:
        return 1 if report.mpi is None else 0
    return 1 if report.problems else 0
