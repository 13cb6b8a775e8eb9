"""find out what is wrong with a machine or a job

Says what this machine and this job will do: how the ranks were started, whether they find each other, which cores,
memory and GPUs they have, and which algorithms mpicoll takes. Each problem comes with its remedy. Started as the ranks
of a job, with mpicoll run, mpirun or srun, it looks at all ranks, and one of them prints the report. The exit code is 1
if there is a problem, and with --log only if MPI does not connect the ranks. With --dump, it asks a running job
what it is doing."""

from __future__ import annotations

import argparse
import re
import sys

from mpicoll.cli.arguments import option

_JOB = re.compile(r"\d+([_+]\d+)?(\.\d+)?")
"""As scancel takes it: a job, a task of an array or a part of a job, and one of its steps."""


def add(p: argparse.ArgumentParser) -> None:
    about = "for job scripts: print where the ranks are and what is wrong to stderr as well, for the job's log"
    option(p, "--log", about)
    about = "ask the job of this process, or this Slurm job, what its ranks are doing: they write files"
    option(p, "--dump PID|job:JOB", about, type=_asked)


def handle(args: argparse.Namespace) -> int:
    from mpicoll.doctor import examine
    from mpicoll.supervise.dump import ask_for_dump, ask_slurm_job

    if isinstance(args.dump, int):
        print(ask_for_dump(args.dump))
        return 0
    if args.dump is not None:
        ask_slurm_job(args.dump)
        print(f"The output of job {args.dump} says in which folder the files are")
        return 0
    report = examine()
    if report is None:
        return 0
    if args.log:  # first: the folder of the report may be full
        print(report.text(short=True), end="", file=sys.stderr, flush=True)
    print(report.text(), end="", flush=True)
    if args.log:
        return 1 if report.mpi is None else 0
    return 1 if report.problems else 0


def _asked(given: str) -> int | str:
    """A process, or the name of a Slurm job."""
    if given.startswith("job:") and _JOB.fullmatch(job := given.removeprefix("job:")):
        return job
    if given.isdecimal():
        return int(given)
    expected = "expected a process of this node, as 1234, or a job of Slurm's, as job:1234"
    raise argparse.ArgumentTypeError(f"{expected}; given {given!r}")
