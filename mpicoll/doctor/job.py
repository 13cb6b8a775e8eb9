"""The job of a rank: how it was started, what MPI says, and how the ranks fit on the cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpicoll.doctor.finding import Finding
from mpicoll.launch.launch_env import launched_rank, started_as, under_launcher
from mpicoll.machine.vendors import RANK_VARIABLES, VENDORS
from mpicoll.units import count, ranges

SIZES = {8: "8 bytes", 64 << 10: "64 KiB", 16 << 20: "16 MiB"}
"""The all-reduces whose algorithm the doctor names."""


@dataclass(frozen=True)
class Start:
    """How a process was started, as its environment says it."""

    launcher: str | None
    pmi: str | None
    """The interface through which the launcher tells ranks how to find each other."""
    number: int | None
    """The number of this process among those that were started together."""
    together: int
    """How many processes were started together."""
    tasks: int | None
    """The ranks for which Slurm has allocated the job."""


@dataclass(frozen=True)
class World:
    """What MPI, once it runs, says to a rank. ``chosen`` has the algorithms of some all-reduces: the bytes, the name,
    and why. ``refused`` says why they are unknown."""

    rank: int
    size: int
    library: str
    threads: str
    """The level of support for threads: MULTIPLE, or less."""
    shares: bool
    """Whether the ranks of this node can share memory."""
    reads: bool
    """Whether this process may read the memory of another one."""
    shares_arrays: bool = False
    """Whether collectives are carried out where arrays lie in memory that the ranks share."""
    chosen: tuple[tuple[int, str, str], ...] = ()
    refused: str = ""


def look() -> Start:
    """What the environment of this process says."""
    number, together = started_as()
    tasks = os.environ.get("SLURM_NTASKS", "")
    return Start(_launcher(), _pmi(), number, together, int(tasks) if tasks.isdecimal() else None)


def _launcher() -> str | None:
    for told in RANK_VARIABLES:
        if told.local_size in os.environ:
            names = {vendor.name: None for vendor in VENDORS if vendor.ranks == told}
            return f"the launcher of {' or '.join(names)}"
    if os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        return "srun"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    return "a launcher with PMI" if under_launcher() else None


def _pmi() -> str | None:
    if "PMIX_NAMESPACE" in os.environ or "PMIX_RANK" in os.environ:
        return "PMIx"
    return "PMI" if launched_rank() is not None else None


def judge_start(start: Start, world: World | None) -> Iterator[Finding]:
    """What there is to say of the launcher. Whether the ranks have found each other is said elsewhere if they have
    not."""
    by = start.launcher or "none"
    how = f"{by} ({start.pmi})" if start.pmi else by
    if world is None:
        yield Finding("launcher", "ok", f"{how}; this is one of {start.together}" if start.together > 1 else how)
        return
    yield Finding("launcher", "ok", f"{how}; MPI connects {count(world.size, 'rank')}")
    if world.size == 1 and start.launcher is None and (start.tasks or 1) > 1:
        text = f"this is one process, but Slurm has allocated the job for {start.tasks} ranks"
        yield Finding("launcher", "warning", text, "To look at all ranks: `srun mpicoll doctor`")


def judge_world(world: World, ranks_here: int) -> Iterator[Finding]:
    """What there is to say of MPI, where ``ranks_here`` ranks run on this rank's node."""
    yield Finding("MPI", "ok", world.library)
    if world.threads == "MULTIPLE":
        yield Finding("threads", "ok", "MPI_THREAD_MULTIPLE")
    else:
        remedy = "Use an MPI that was built with it, and leave mpi4py.rc.thread_level as it is"
        text = f"MPI_THREAD_{world.threads} instead of MPI_THREAD_MULTIPLE: asynchronous collectives of torch block"
        yield Finding("threads", "warning", text, remedy)
    if ranks_here > 1:
        yield _judge_sharing(world)
    if world.reads:
        yield Finding("memory access", "ok", "a process may read the memory of another (process_vm_readv)")
    else:
        remedy = "As root: sysctl kernel.yama.ptrace_scope=0; in a container: allow CAP_SYS_PTRACE"
        text = "no process may read the memory of another (process_vm_readv): MPI copies long messages twice"
        yield Finding("memory access", "warning", text, remedy)


def judge_choice(world: World) -> Iterator[Finding]:
    """Which algorithms will be taken. Rank 0 decides that for all."""
    if world.refused:
        yield Finding("settings", "problem", world.refused, "Correct the variable, or unset it")
    for nbytes, name, why in world.chosen:
        yield Finding("algorithm", "ok", f"all-reduce of {SIZES[nbytes]}: {name} ({why})")


def _judge_sharing(world: World) -> Finding:
    if world.shares:
        arrays = "; collectives work on arrays of comm.empty where they lie" if world.shares_arrays else ""
        return Finding("shared memory", "ok", f"the ranks of a node share memory{arrays}")
    remedy = "Run all ranks of a node in one container, and do not set MPICOLL_SHARED_MEMORY=0"
    text = "the ranks of a node do not share memory: collectives are the MPI library's"
    return Finding("shared memory", "warning", text, remedy)


@dataclass(frozen=True)
class Seat:
    """The cores of a rank, and the threads that it will start on them: OMP_NUM_THREADS, None where it is not set."""

    rank: int
    cores: frozenset[int]
    threads: int | None


def judge_cores(seats: Sequence[Seat]) -> Iterator[Finding]:
    """What there is to say of the ranks of one node. The ranks that may use no other cores than some rank's must find
    room on these."""
    found = False
    for cores in sorted({seat.cores for seat in seats}, key=sorted):
        within = [seat for seat in seats if seat.cores <= cores]
        finding = _judge_room(len(cores), within)
        if finding:
            found = True
            yield finding
    if not found:
        threads = "".join(f", OMP_NUM_THREADS={n}" for n in dict.fromkeys(seat.threads for seat in seats) if n)
        text = f"{count(len(seats), 'rank')} a node, on cores {_bound(seats)}{threads}"
        yield Finding("cores", "ok", text, ranks=tuple(seat.rank for seat in seats))


def _bound(seats: Sequence[Seat]) -> str:
    """The cores of each rank."""
    return " | ".join(ranges(sorted(seat.cores)) for seat in seats)


def _judge_room(cores: int, seats: list[Seat]) -> Finding | None:
    """What is wrong with these ranks on so many cores."""
    ranks = tuple(seat.rank for seat in seats)
    where = f"{count(cores, 'core')}: {_bound(seats)}"
    if len(seats) > cores:
        remedy = "Start fewer ranks, ask for more cores, or let the launcher bind each rank to cores of its own"
        return Finding("cores", "problem", f"{len(seats)} ranks take turns on {where}", remedy, ranks)
    threads = sum(seat.threads or len(seat.cores) for seat in seats)
    if threads <= cores:
        return None
    remedy = f"export OMP_NUM_THREADS={cores // len(seats)}, or give each rank more cores"
    is_set = any(seat.threads is not None for seat in seats)
    why = "OMP_NUM_THREADS" if is_set else "OMP_NUM_THREADS is not set"
    text = f"{count(len(seats), 'rank')} with {threads} threads together ({why}) on {where}"
    return Finding("cores", "problem" if is_set else "warning", text, remedy, ranks)
