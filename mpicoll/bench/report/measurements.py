"""What a benchmark measured, and what is computed from it.

Times are in microseconds, sizes in bytes, bandwidths in 10^9 bytes a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpicoll.bench.cases.case import PLACEMENTS, Case, Placement
from mpicoll.collectives import Collective

__all__ = ["Line", "Measurement", "Note", "Report"]


@dataclass(frozen=True)
class Measurement:
    """One case on one backend: the time of each call on its slowest rank, and the wrong elements over all checks.

    ``route`` is what has carried the calls out. ``on_device`` has the times between CUDA events, on a GPU."""

    case: Case
    backend: str
    route: str
    times: list[float]
    wrong: int
    on_device: list[float] = field(default_factory=list)

    @property
    def time(self) -> float:
        """The mean, as in nccl-tests."""
        return float(np.mean(self.times))

    @property
    def p50(self) -> float:
        return float(np.percentile(self.times, 50))

    @property
    def p99(self) -> float:
        return float(np.percentile(self.times, 99))

    @property
    def event_p50(self) -> float | None:
        """The median time between CUDA events; None where there are none."""
        return float(np.percentile(self.on_device, 50)) if self.on_device else None

    @property
    def caveat(self) -> str:
        """What the figures do not show. Empty where they are what they seem."""
        if self.case.sharing == 1:
            return ""
        return f"GPU shared by {self.case.sharing} ranks" + ": not NCCL's bandwidth" * (self.backend == "nccl")

    @property
    def comparable(self) -> bool:
        """Whether the figures may be compared with other backends'. NCCL is not made for ranks that share a GPU."""
        return self.backend != "nccl" or not self.caveat

    @property
    def algbw(self) -> float:
        return self.case.bytes / self.time / 1e3

    @property
    def busbw(self) -> float:
        return self.algbw * self.case.collective.bus_factor(self.case.ranks)


@dataclass(frozen=True)
class Line:
    """A line of the table: a backend's measurements of one size, and those of the first backend, by placement."""

    backend: str
    case: Case
    by: dict[Placement, Measurement]
    first: dict[Placement, Measurement]

    def ratio(self, placement: Placement) -> float | None:
        """This backend's median over that of the first backend. Above 1, this backend is slower. None where there is
        nothing to compare."""
        mine, first = self.by.get(placement), self.first.get(placement)
        return mine.p50 / first.p50 if mine and first and mine.comparable and first.comparable else None

    @property
    def wrong(self) -> int:
        return sum(m.wrong for m in self.by.values())

    @property
    def usual(self) -> Measurement | None:
        """The measurement in the collective's usual placement. None if the backend cannot run that."""
        return self.by.get(PLACEMENTS[self.case.name][0])


@dataclass(frozen=True)
class Note:
    """Why a backend, or one collective of it in one placement, was not measured."""

    backend: str
    reason: str
    collective: str | None = None
    placement: Placement | None = None

    def __str__(self) -> str:
        where = "" if self.placement is None else {"out": " out of place", "in": " in place"}[self.placement]
        what = f" {self.collective}{where}" if self.collective else ""
        return f"{self.backend} does not run{what}: {self.reason}"


@dataclass
class Report:
    """Everything that a benchmark found.

    ``copies`` has the floor, by size: the median time in which each rank copies so many bytes from one buffer to
    another while all other ranks do the same. ``clocks`` says how times were taken.
    """

    command: str
    started: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    notes: list[Note] = field(default_factory=list)
    clocks: dict[str, str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    copies: dict[int, float] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def measurements(self) -> list[tuple[Line, Measurement]]:
        return [(line, m) for line in self.lines for m in line.by.values()]

    @property
    def wrong(self) -> int:
        return sum(line.wrong for line in self.lines)

    @property
    def collectives(self) -> list[Collective]:
        return list({line.case.name: line.case.collective for line in self.lines}.values())

    @property
    def backends(self) -> list[str]:
        return list(dict.fromkeys(line.backend for line in self.lines))
