"""What do two-level algorithms save on several nodes, and does the model say so?

Each collective runs by the MPI library's own algorithm, by a flat one of mpicoll's, and by the two-level one. Before
and after it, the counters of each node's network interfaces are read. It needs emulated nodes, whose ranks can begin
together because they have one clock:

    python -m tests.nodes.nodes --nodes 4 --rate 100 --delay 1000 -- \
        .venv/openmpi/bin/mpicoll run -n 8 benchmarks/nodes.py > benchmarks/records/nodes-4x2-openmpi-delay.txt

``--cyclic`` before ``--`` deals the ranks out to the nodes. Collectives that are named after ``nodes.py`` are measured
alone. All cases take turns in one job. The figures of a row are the minimum and the median of the milliseconds that a
call takes on the slowest rank; how much faster it is than native, by the medians; the bytes that the busiest interface
sends or receives, as a part of the vector; that, as a part of the least that any algorithm can do with; and what the
model says, with its error against the minimum. The model knows the links from ping-pongs, and the node from
fit_machine.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import fit_machine  # type: ignore[import-not-found]  # it lies beside this file
import numpy as np
import torch
from mpi4py import MPI

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import Nodes
from mpicoll.analysis.cost.machines import Level, Machine
from mpicoll.analysis.cost.simulation import costs
from mpicoll.bench.session import Session, environment
from mpicoll.machine.vendors import SETTINGS
from mpicoll.units import size_text

SIZES = (1 << 10, 64 << 10, 1 << 20, 4 << 20)
FLAT = {
    "bcast": "chain",
    "reduce": "chain",
    "allreduce": "ring",
    "allgather": "ring",
    "reduce_scatter": "ring",
    "gather": "linear",
    "scatter": "linear",
    "alltoall": "pairwise",
}
"""The collectives, and the flat algorithm of each that moves the fewest bytes."""
REDUCTIONS = (
    ("float32", "sum", "native"),
    ("bfloat16", "sum", "wide"),
    ("bfloat16", "sum", "exchange"),
    ("bfloat16", "sum", "two_level"),
    ("float32", "max", "two_level"),
    ("float32", "max", "exchange"),
)
"""An all-reduce that MPI has, and those that it lacks."""
TURNS = 7
"""The turns that count. One more comes first: it binds plans, and opens connections."""
HEAD_START = 0.02
"""Seconds, in which all ranks hear when a call begins."""

world = MPI.COMM_WORLD
comm = mpicoll.Communicator(world)
found_node = world.Split_type(MPI.COMM_TYPE_SHARED)
assert isinstance(found_node, MPI.Intracomm)
node: MPI.Intracomm = found_node
nodes = Nodes.named(world.allgather(node.bcast(world.rank)))


@dataclass
class Case:
    """One row, and what was measured for it."""

    label: str
    nbytes: int
    call: Callable[[], object]
    seconds: list[float] = field(default_factory=list)
    parts: list[float] = field(default_factory=list)

    def turn(self) -> None:
        world.Barrier()
        before = counters()
        start = begin_together()
        self.call()
        took = perf_counter() - start
        world.Barrier()
        moved = max(b - a for a, b in zip(before, counters(), strict=True))
        self.seconds.append(world.allreduce(took, MPI.MAX))
        self.parts.append(world.allreduce(moved, MPI.MAX) / self.nbytes)

    @property
    def least(self) -> float:
        return min(self.seconds[1:])

    @property
    def median(self) -> float:
        return float(np.median(self.seconds[1:]))

    @property
    def part(self) -> float:
        return float(np.median(self.parts[1:]))


def begin_together() -> float:
    """Return on all ranks at the same time, and which time that is. A barrier's ranks are as far apart as a message
    needs. Emulated nodes are one machine, so they have one clock."""
    start = float(world.bcast(perf_counter() + HEAD_START))
    while perf_counter() < start:
        os.sched_yield()  # a rank that sleeps needs half a millisecond to be at its former speed
    return start


def counters() -> list[int]:
    """The bytes that the interfaces of this node have sent, and received."""
    found = [each / "statistics" for each in Path("/sys/class/net").iterdir() if each.name != "lo"]
    return [sum(int((each / f"{way}_bytes").read_text()) for each in found) for way in ("tx", "rx")]


def least_part(collective: str) -> float:
    """What the busiest interface must send or receive, as a part of the vector."""
    k, parts = len(nodes.ranks), [len(ranks) / nodes.size for ranks in nodes.ranks]
    match collective:
        case "allreduce":
            return 2 * (k - 1) / k
        case "alltoall":
            return max(len(ranks) * (1 - part) for ranks, part in zip(nodes.ranks, parts, strict=True))
        case "gather" | "scatter":
            return 1 - parts[nodes.of[0]]
        case _:
            return 1 - min(parts) if COLLECTIVES[collective].by_rank else 1.0


def taking_turns(cases: list[Case]) -> None:
    for _ in range(TURNS + 1):
        for case in cases:
            case.turn()


def case_of(collective: str, algorithm: str, nbytes: int) -> Case:
    table = COLLECTIVES[collective]
    n = nbytes // 4 // (comm.size if table.by_rank else 1)
    x = np.zeros((comm.size, n) if table.gives == "p" else n, np.float32)
    out = None if collective == "bcast" else np.zeros((comm.size, n) if table.gets == "p" else n, np.float32)
    given = {} if out is None or not table.gets_at(comm.rank, 0) else {"out": out}
    call = getattr(comm, collective)
    return Case(algorithm, nbytes, lambda: call(x, algorithm=algorithm, **given))


def reduction_of(dtype: str, op: str, algorithm: str, elements: int) -> Case:
    x = torch.zeros(elements, dtype=getattr(torch, dtype))
    out = torch.zeros_like(x)
    label = f"{op} of {dtype}, {algorithm}"
    return Case(label, elements * 4, lambda: comm.allreduce(x, op, out=out, algorithm=algorithm))


def there_and_back(peer: int, nbytes: int) -> float:
    """Half of the seconds of a ping-pong between rank 0 and ``peer``."""
    message, took = np.zeros(nbytes, np.uint8), []
    for _ in range(TURNS):
        world.Barrier()
        start = perf_counter()
        if world.rank == 0:
            world.Send(message, peer)
            world.Recv(message, peer)
        elif world.rank == peer:
            world.Recv(message, 0)
            world.Send(message, 0)
        took.append((perf_counter() - start) / 2)
    return float(world.bcast(min(took)))


def described() -> Machine | None:
    """The machine: its nodes as the fit finds them, and links between them. None on ranks other than 0."""
    other = nodes.ranks[1][0]
    short, long, longer = (there_and_back(other, n) for n in (8, 1 << 20, 4 << 20))
    inner: Machine | None = fit_machine.measured_machine(node, "node", "fitted") if nodes.of[world.rank] == 0 else None
    world.Barrier()
    if inner is None or world.rank:
        return None
    within = replace(inner.levels[0], ranks=len(nodes.ranks[0]))
    gap = (longer - long) / (3 << 20)
    latency = max(short - 2 * within.overhead, 0.0)
    link = Level(name="link", ranks=None, latency=latency, gap=gap, overhead=within.overhead, ports=1)
    placement = "block" if nodes == Nodes.block(nodes.size, len(nodes.ranks)) else "round-robin"
    return replace(inner, levels=(within, link), eager=None, placement=placement)


def predicted(machine: Machine | None, collective: str, algorithm: str, nbytes: int) -> float | None:
    if machine is None or algorithm == "native":
        return None
    return float(costs(collective, algorithm, comm.size, machine, [nbytes]).seconds[0])


def main(collectives: Sequence[str]) -> None:
    """Measure these collectives, or all of them and reductions that MPI lacks if none is named. Rank 0 prints."""
    machine = described()
    about = environment(Session(world, node, "cpu"))
    errors = []
    if machine is not None:
        latency, gap = machine.levels[1].latency, machine.rate(machine.levels[1].gap, SIZES[-1])
        where = " | ".join(" ".join(map(str, ranks)) for ranks in nodes.ranks)
        print(f"{about['mpi']}, {about['cpu']}, {about['cores']} cores for all nodes; the ranks of each node: {where}")
        print(
            "settings:", *(f"{name}={value}" for name, value in sorted(os.environ.items()) if SETTINGS.fullmatch(name))
        )
        print(f"links: {8e-6 / gap:.0f} Mbit/s, {latency * 1e6:.0f} us")
        print(f"{'':31} {'min':>7} {'median':>7} {'x':>5} {'bytes':>6} {'of least':>8} {'model':>7} error")
    for collective in collectives or FLAT:
        for nbytes in SIZES:
            cases = [case_of(collective, algorithm, nbytes) for algorithm in ("native", FLAT[collective], "two_level")]
            taking_turns(cases)
            if machine is None:
                continue
            for case in cases:
                says = predicted(machine, collective, case.label, nbytes)
                model = ""
                if says is not None:
                    errors.append(says / case.least - 1)
                    model = f"{says * 1e3:7.2f} {errors[-1]:+5.0%}"
                print(
                    f"{collective:14} {size_text(nbytes):>5} {case.label:10} {case.least * 1e3:7.2f}"
                    f" {case.median * 1e3:7.2f} {cases[0].median / case.median:5.2f} {case.part:6.3f}"
                    f" {case.part / least_part(collective):8.3f} {model}",
                    flush=True,
                )
    if machine is not None:
        print(f"the model: {len(errors)} predictions, median error {np.median(np.abs(errors)):.0%}")
    for elements in () if collectives else (1 << 18, 1 << 20):
        cases = [reduction_of(*words, elements) for words in REDUCTIONS]
        taking_turns(cases)
        for case in cases if machine is not None else ():
            print(
                f"allreduce of {size_text(elements):>4} elements: {case.label:26} {case.least * 1e3:7.2f}"
                f" {case.median * 1e3:7.2f} {cases[0].median / case.median:5.2f} {case.part * 4:6.2f} bytes an element",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
