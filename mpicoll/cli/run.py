"""start the ranks of a program

Starts N ranks of a Python program with the MPI of this environment. An uncaught exception in one rank ends all ranks.
In a batch job, the ranks run on the nodes of the job. Elsewhere they run on this machine, or on the nodes of
a hostfile."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from functools import partial

from mpicoll.cli.arguments import number, option, ranks
from mpicoll.jobs.launcher import Job, in_batch_job
from mpicoll.jobs.run import run
from mpicoll.launch.cores import mine

USAGE = "mpicoll run -n N [option ...] (script.py | -m module | -c code) [argument ...]"


def add(p: argparse.ArgumentParser) -> None:
    option(p, "-n -np N", "the number of ranks", dest="nprocs", type=ranks)
    about = "the nodes to run on, one per line: `node1 slots=4` for Open MPI, `node1:4` for MPICH and Intel MPI"
    option(p, "--hostfile FILE", about)
    about = "flags for the MPI's own launcher, in quotes: --launcher-args='--map-by numa -x NAME'"
    option(p, "--launcher-args FLAGS", about, dest="flags", type=_words, default=[])
    about = "watch the calls of mpi4py that the program makes itself, too, and say why it hangs"
    option(p, "--watch", about)
    about = "go on when ranks are lost: the others get RankLost, and can shrink the communicator (Open MPI 5)"
    option(p, "--elastic", about)
    option(p, "--gpu", "let the wheel of Open MPI take GPU memory, through the UCX of the extra `cuda`")
    group = p.add_argument_group("options of torchrun")
    about = "the number of ranks on each node, instead of -n; auto and cpu take one for each core of this node"
    option(group, "--nproc-per-node --nproc_per_node N", about, type=_ranks_of_a_node)
    about = "the number of nodes, of a hostfile or a batch job (1)"
    option(group, "--nnodes K", about, type=partial(number, least=1), default=1)
    about = "start the whole job again if it fails, at most this many times (0)"
    option(group, "--max-restarts --max_restarts R", about, dest="restarts", type=number, default=0)
    option(group, "--standalone", "accepted; MPI needs nothing for it")
    option(p, "--dry-run", "print the command instead of running it")
    p.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    p.add_argument("-c", dest="code", nargs=argparse.REMAINDER, help="run code, as python -c does")
    p.add_argument("script", nargs=argparse.REMAINDER, help="the script, and the arguments to pass to it")
    p.set_defaults(instead=". MPI connects the ranks. Options of its own launcher are for --launcher-args")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected words as a shell takes them ({error}); given {text!r}") from error


def _ranks_of_a_node(text: str) -> int:
    return len(mine()) if text in ("auto", "cpu") else ranks(text)


def _number(args: argparse.Namespace) -> int:
    if args.nproc_per_node is None:
        if args.nprocs is None:
            args.parser.error("expected -n N, the number of ranks")
        if args.nnodes > 1:
            args.parser.error("--nnodes: expected --nproc-per-node beside it, instead of -n")
        return int(args.nprocs)
    if args.nprocs is not None:
        args.parser.error("expected -n or --nproc-per-node; given both")
    if args.nnodes > 1 and args.hostfile is None and not in_batch_job():
        remedy = "one `mpicoll run` starts all ranks: name the nodes with --hostfile, or run it in a batch job"
        args.parser.error(f"--nnodes {args.nnodes}: {remedy}")
    return int(args.nproc_per_node * args.nnodes)


def handle(args: argparse.Namespace) -> int:
    nprocs = _number(args)
    if args.elastic and args.restarts:
        args.parser.error("expected --elastic or --max-restarts; given both")
    flag, rest = "", args.script[1:] if args.script[:1] == ["--"] else args.script
    for name, given in (("-m", args.module), ("-c", args.code)):
        if given is not None:
            flag, rest = name, given + args.script
    if not rest:
        args.parser.error(f"expected {'an argument after ' + flag if flag else 'a script, -m module or -c code'}")
    given = {field.name: vars(args)[field.name] for field in dataclasses.fields(Job) if field.name in vars(args)}
    given |= {"program": [flag, *rest] if flag else rest, "nprocs": nprocs}
    return run(Job(**given, ranks_a_node=args.nproc_per_node if args.nnodes > 1 else None))
