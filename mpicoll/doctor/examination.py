"""The examination of a job: each rank's process gathers facts and starts a child that becomes the rank. Rank 0 gets the
facts of all, and judges them.

If MPI ends the child, or does not let it go on, this process is still there, and says so.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from mpicoll.doctor import gpu, job, machine
from mpicoll.doctor.finding import Finding, Report, together
from mpicoll.doctor.gpu import Gpu
from mpicoll.doctor.job import Seat, Start, World
from mpicoll.doctor.machine import Machine
from mpicoll.errors import LaunchError
from mpicoll.launch.launch_env import RANK
from mpicoll.machine.peer_memory import mark
from mpicoll.units import alike, named

CONNECTED = "connected"
"""What the child says when MPI has started in it."""
SECONDS = 600.0
"""How long MPI may take to start, and then to bring all facts to rank 0. Big jobs take minutes to start."""
GRACE = 30.0
"""How much longer the other ranks wait: if they ended first, the launcher might end rank 0 before it reports."""
_STDERR = 2
_SEE = "See the other problems, and what MPI has printed"
_TO_START = f"{_SEE}. `mpicoll run` takes the launcher of the MPI that mpi4py loads"
_TO_EXCHANGE = f"{_SEE}. Does MPI take a network that connects the nodes? See `ip -brief address`"
_RANK = (sys.executable, "-m", "mpicoll.doctor.child")


@dataclass(frozen=True)
class Facts:
    """All that is known of a rank. ``world`` is None where MPI has not started."""

    start: Start
    machine: Machine
    gpu: Gpu
    world: World | None = None


def examine() -> Report | None:
    """The report on this process and on all ranks that were started with it. None in all processes but one, which is to
    print it. Raises LaunchError in another process if MPI fails there alone."""
    facts = Facts(job.look(), machine.look(), gpu.look())
    reports = facts.start.number in (0, None)
    try:
        answer = _of_rank(facts, SECONDS if reports else SECONDS + GRACE)
    except LaunchError as error:  # MPI has failed in the child
        if not reports:
            raise
        answer = error
    if isinstance(answer, LaunchError):
        return judge([facts], answer) if reports else None
    return None if answer is None else judge(answer)


def _of_rank(facts: Facts, seconds: float) -> list[Facts] | LaunchError | None:
    """Start the child, which becomes the rank. It gets the facts of all ranks if it is rank 0, and None otherwise, or
    an error if it must not use MPI. Raises LaunchError if it ends, or if it does not answer for so many seconds."""
    here, there = multiprocessing.Pipe()
    os.set_inheritable(there.fileno(), True)
    # The child needs the files that the launcher has opened for the rank. What it prints is no part of the report.
    argv = [*_RANK, str(there.fileno()), str(os.getpid())]
    env = {k: v for k, v in os.environ.items() if k != RANK}
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=_STDERR, close_fds=False, env=env)
    there.close()
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended already, as _next will see
            here.send((facts, mark()))
        answer: str | list[Facts] | LaunchError | None = _next(here, child, seconds, "MPI had started", _TO_START)
        if answer == CONNECTED:
            answer = _next(here, child, seconds, "the ranks had exchanged messages", _TO_EXCHANGE)
        assert not isinstance(answer, str)
        return answer
    finally:
        here.close()
        _end(child)


def _next(here: Connection, child: subprocess.Popen[bytes], seconds: float, what: str, remedy: str) -> Any:
    """What the child sends next. Raises LaunchError, which says before ``what``, if it ends instead, or if it sends
    nothing for so long."""
    try:
        if here.poll(seconds):
            return here.recv()
    except (EOFError, ConnectionResetError):
        _end(child)
        code = child.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        text = f"the process ended with {how} before {what}"
    else:
        child.kill()
        text = f"{seconds:g} s passed before {what}"
    raise LaunchError(text, remedy)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Wait for the child, which has nothing to do but to end MPI."""
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def judge(everyone: Sequence[Facts], failure: LaunchError | None = None) -> Report:
    """The report on these ranks. ``failure`` says why MPI does not connect them."""
    by_rank = {(f.start.number or 0) if f.world is None else f.world.rank: f for f in everyone}
    nodes = {rank: f.machine.node for rank, f in by_rank.items()}
    found = [*_of_ranks(by_rank), *_differences(by_rank)]
    if failure is not None:
        found.append(Finding("MPI", "problem", failure.problem, failure.remedy))
    first = next(iter(by_rank.values())).world
    if first is not None:
        found += job.judge_choice(first)
    return Report(nodes, first.library if first else None, together(found, nodes))


def _of_ranks(by_rank: Mapping[int, Facts]) -> Iterator[Finding]:
    """What there is to say of each rank by itself, and of the ranks of each node."""
    on_node: dict[str, dict[int, Facts]] = {}
    for rank, f in by_rank.items():
        on_node.setdefault(f.machine.node, {})[rank] = f
    for rank, f in by_rank.items():
        here = len(on_node[f.machine.node])
        found = [*job.judge_start(f.start, f.world)]
        if f.world is not None:
            found += job.judge_world(f.world, here)
        found += [*machine.judge(f.machine, here, len(on_node)), *gpu.judge(f.gpu)]
        yield from (replace(finding, ranks=(rank,)) for finding in found)
    for there in on_node.values():
        yield from job.judge_cores(
            [Seat(rank, frozenset(f.machine.cores), f.machine.omp_threads) for rank, f in there.items()]
        )
        yield from gpu.judge_places({rank: f.gpu for rank, f in there.items()})


def _differences(by_rank: Mapping[int, Facts]) -> Iterator[Finding]:
    """What should be the same on all ranks, and is not."""
    of_all = {rank: _comparable(f) for rank, f in by_rank.items()}
    for topic, name in dict.fromkeys(key for of_one in of_all.values() for key in of_one):
        values = alike({rank: of_one.get((topic, name)) for rank, of_one in of_all.items()})
        if len(values) > 1:
            each = "; ".join(f"{value or 'none'} ({named(r)})" for value, r in values.items())
            wrong = name in ("MPI", "mpicoll")
            yield Finding(topic, "problem" if wrong else "warning", f"{name} differs: {each}", _ALIKE[topic])


_ALIKE = {
    "versions": "Start all ranks in the same environment",
    "settings": "Set the variable alike on all ranks; otherwise rank 0's value counts",
    "CPU": "Use nodes of one kind: in a collective, all wait for the slowest one",
}


def _comparable(f: Facts) -> dict[tuple[str, str], str | None]:
    """By topic and name."""
    found: dict[tuple[str, str], str | None] = {("versions", "MPI"): f.world.library if f.world else None}
    found |= {("versions", name): version for name, version in f.machine.versions.items()}
    found |= {("settings", name): value for name, value in f.machine.variables.items()}
    found["CPU", "CPU"] = f.machine.cpu
    return found
