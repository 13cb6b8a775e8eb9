"""The ranks of one launch. ``python -m mpicoll.bench.tune.rank ORDER FOUND`` measures what the file ORDER says.

Rank 0 appends a line of JSON to the file FOUND for each thing that was found, so that a launch that is ended leaves
what it has measured.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.arrays.dtypes import DTYPES
from mpicoll.bench.backends import Backend, open_backend
from mpicoll.bench.cases.case import PLACEMENTS, Case, elements
from mpicoll.bench.cases.memory import Arena
from mpicoll.bench.fit import primitives
from mpicoll.bench.measuring.environment import environment
from mpicoll.bench.measuring.interruption import seen
from mpicoll.bench.measuring.timing import Runner, measure
from mpicoll.bench.session import Session, open_session
from mpicoll.bench.tune.cells import Cell, huge_bytes, kinds, new_arrays
from mpicoll.errors import ArgumentError
from mpicoll.machine.cpu import UNKNOWN, fingerprint
from mpicoll.machine.pages import HUGE

__all__ = ["main"]

ROUNDS = (4, 10)
"""The fewest and the most turns of each algorithm. A launch is one sample, whatever the number of its calls. With two
turns, half of the calls of long vectors would be first ones, which find memory that nobody has touched."""
SECONDS = 0.1
"""About how long the algorithms of a cell take turns on one kind of pages."""


class Measuring:
    """What all cells of a launch share. Collective."""

    def __init__(self, session: Session, found: Path) -> None:
        self.session, self.world, self._found = session, session.world, found
        self.environment = environment(session)
        self.backends: dict[str, Backend] = {}
        self.arenas = {kind: Arena(new=new_arrays(kind)) for kind in ("huge", "small")}
        alike = len({*self.world.allgather(fingerprint())}) == 1
        reasons = {
            "this system does not tell which CPU it has": self.environment["fingerprint"] == UNKNOWN,
            "the ranks are on several nodes": self.environment["nodes"] > 1,
            "the ranks share no memory": not self.environment["shared_memory"],
            "the ranks have different CPUs": not alike,
        }
        refused = next((reason for reason, holds in reasons.items() if holds), "")
        self.tell(refused=refused) if refused else self.tell(environment=self.environment)
        self.may_measure = not refused

    def tell(self, **what: Any) -> None:
        if self.world.rank == 0:
            with self._found.open("a") as file:
                file.write(json.dumps(what) + "\n")

    def fit(self) -> None:
        """Tell the machine of the cost model, as a few messages through shared memory show it."""
        machine = primitives(self.world, f"{self.environment['cpu']}, {self.environment['mpi']}")
        if machine is not None:
            self.tell(model=machine.as_dict())

    def cell(self, cell: Cell, names: list[str]) -> None:
        """Let the algorithms take turns on each kind of pages."""
        for kind in kinds(self.environment["huge_pages"]):
            began = time.monotonic()
            medians = self._medians(cell, kind, names)
            self.tell(case=cell.case, size=cell.size, pages=kind, p50_us=medians, seconds=time.monotonic() - began)

    def _medians(self, cell: Cell, kind: str, names: list[str]) -> dict[str, float]:
        collective, dtype, world = cell.collective, DTYPES["float32"], self.world
        count = elements(collective, cell.size, dtype, world.size)
        placement = PLACEMENTS[collective.name][0]
        case = Case(collective, count, dtype, cell.op, 0, world.rank, world.size, placement, uneven=cell.uneven)
        pairs = self.arenas[kind].buffers(case)
        runners = [Runner(pairs, [self._backend(name).bind(pair) for pair in pairs]) for name in names]
        measure(world, runners, SECONDS, ROUNDS)
        for name, runner in zip(names, runners, strict=True):
            if runner.wrong:
                what = f"{cell.case} of {cell.size} bytes among {world.size} ranks"
                raise ArgumentError("tune", f"{name}, {what}", "the right result", f"{runner.wrong} wrong elements")
        if kind == "huge" and cell.size >= 8 * HUGE and world.allreduce(huge_bytes(), MPI.MIN) < cell.size // 2:
            raise ArgumentError("tune", "huge pages", "enough for the arrays", "a system that had none left")
        return {name: round(float(np.median(r.times)), 2) for name, r in zip(names, runners, strict=True)}

    def _backend(self, algorithm: str) -> Backend:
        if algorithm not in self.backends:
            self.backends[algorithm] = open_backend(f"mpicoll:{algorithm}", self.session)
        return self.backends[algorithm]


def main(order: Path, found: Path) -> None:
    """Be a rank. A launch ends early if its time is up, or if somebody pressed Ctrl-C."""
    world = MPI.COMM_WORLD
    given = world.bcast(json.loads(order.read_text()) if world.rank == 0 else None)
    began = time.monotonic()
    measuring = Measuring(open_session(world, "cpu"), found)
    if not measuring.may_measure:
        return
    if given["fit"]:
        measuring.fit()
    for i, (case, size, names) in enumerate(given["cells"]):
        if seen(world) or world.bcast(i > 0 and time.monotonic() - began > given["at_most"]):
            break
        measuring.cell(Cell(case, size), names)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
