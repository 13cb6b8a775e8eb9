"""The measurements of one setting: the times of all candidates, and the rows that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf, isqrt
from typing import Any, NamedTuple

from mpicoll import algorithms
from mpicoll.algorithms.collectives import even_and_uneven
from mpicoll.algorithms.digests import digest
from mpicoll.analysis.cost.machines import from_dict
from mpicoll.bench.tune.cells import SHORTEST, Cell, kinds
from mpicoll.bench.tune.statistics import Speedups, best, mean, worse
from mpicoll.calls.choice import CICO
from mpicoll.calls.measured import OTHERWISE, SETTING, Setting, cico_digest, section
from mpicoll.errors import ArgumentError
from mpicoll.units import size_text

__all__ = ["Launch", "Record", "Time", "by_size", "read", "rows"]

Verdict = Callable[[Cell], str | None]
"""The candidate that is to run for a cell; None where what would run otherwise is."""
Speed = Callable[[Cell, str], float]
"""How many times as fast as what would run otherwise a candidate was."""
NOT_SLOWER = 0.97


class Launch(NamedTuple):
    """One job that measured. ``began`` is a time as text, in UTC."""

    key: str
    began: str
    mpicoll: str


class Time(NamedTuple):
    """The medians of one launch, in microseconds, of all algorithms that took turns there."""

    launch: str
    cell: Cell
    pages: str
    p50_us: Mapping[str, float]


@dataclass
class Record:
    """What was measured with one CPU, MPI library and number of ranks. ``environment`` says more about the machine.
    ``model`` is the cost model's machine as it was fitted here."""

    cpu: str
    mpi: str
    ranks: int
    oversubscribed: bool
    environment: dict[str, Any]
    launches: dict[str, Launch] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    times: list[Time] = field(default_factory=list)

    @property
    def setting(self) -> Setting:
        return self.cpu, self.mpi, self.ranks, self.oversubscribed

    @property
    def cells(self) -> list[Cell]:
        return sorted({time.cell for time in self.times})

    def join(self, other: Record) -> None:
        """Take in what another run has measured in this setting: nothing that was measured is lost."""
        known = {(time.launch, time.cell, time.pages) for time in self.times}
        self.launches |= other.launches
        self.times += [t for t in other.times if (t.launch, t.cell, t.pages) not in known]
        self.model = self.model or other.model

    def of(self, cell: Cell) -> list[dict[str, Time]]:
        """The times of a cell by kind of pages, for each launch that measured all kinds on which arrays may lie
        there, in their order."""
        by_launch: dict[str, dict[str, Time]] = {}
        for time in self.times:
            if time.cell == cell:
                by_launch.setdefault(time.launch, {})[time.pages] = time
        needed = {*kinds(self.environment.get("huge_pages"))}
        whole = {key: of_one for key, of_one in by_launch.items() if {*of_one} == needed}
        return [whole[key] for key in sorted(whole, key=lambda key: self.launches[key].began)]

    def latest(self, cell: Cell) -> str:
        """When the last launch of a cell began; empty if none did."""
        return max((self.launches[time.launch].began for time in self.times if time.cell == cell), default="")

    def speedups(self, cell: Cell) -> Speedups:
        """The speed-ups of each candidate."""
        found: dict[str, list[list[float]]] = {}
        for by_pages in self.of(cell):
            times = [time.p50_us for time in by_pages.values()]
            for name in times[0]:
                if name != cell.otherwise and all(name in each for each in times):
                    found.setdefault(name, []).append([each[cell.otherwise] / each[name] for each in times])
        return found

    def verdict(self, cell: Cell) -> str | None:
        return best(self.speedups(cell))

    def speed(self, cell: Cell, name: str) -> float:
        """How many times as fast a candidate was on the pages where it won less; 0 if it was not measured."""
        found = self.speedups(cell).get(name)
        return mean(worse(found)) if found else 0.0

    def summary(self) -> Iterator[str]:
        """A line for each case: what runs at each size, and how many times as fast it was on the worse pages."""
        by_case: dict[str, list[str]] = {}
        for cell in self.cells:
            name = self.verdict(cell)
            gain = f" {self.speed(cell, name):.2f}x" if name else ""
            by_case.setdefault(cell.case, []).append(f"{size_text(cell.size)} {name or cell.otherwise}{gain}")
        for case, cells in by_case.items():
            yield f"{case}, {self.ranks} ranks: {', '.join(cells)}"

    def as_dict(self) -> dict[str, Any]:
        """The section of a table."""
        return {
            **dict(zip(SETTING, self.setting, strict=True)),
            "algorithms": self.digests(self.cpu),
            **rows(self.cells, self.verdict, self.speed),
            "environment": self.environment,
            "model": self.model,
            "launches": [each._asdict() for each in sorted(self.launches.values(), key=lambda each: each.began)],
            "times": [{"launch": t.launch, **t.cell._asdict(), "pages": t.pages, "p50_us": t.p50_us}
                      for t in sorted(self.times)],
        }  # fmt: skip

    def digests(self, cpu: str | None) -> dict[str, dict[str, str]]:
        """By method and algorithm, the digest of what was measured, for a section of this CPU, or of several."""
        measured = {(time.cell.operation, name) for time in self.times for name in time.p50_us}
        found: dict[str, dict[str, str]] = {}
        for operation, name in sorted(measured):
            if name == CICO:
                found.setdefault(operation, {})[name] = cico_digest(cpu)
            elif name not in OTHERWISE and (known := algorithms.find(even_and_uneven(operation)[0].name, name)):
                found.setdefault(operation, {})[name] = digest(known, self.ranks)
        return found


def rows(cells: Iterable[Cell], verdict: Verdict, speed: Speed) -> dict[str, dict[str, dict[str, str]]]:
    """The rows of a section, as a table has them."""
    found: dict[str, dict[str, dict[str, str]]] = {otherwise: {} for otherwise in OTHERWISE}
    by_case: dict[str, list[Cell]] = {}
    for cell in cells:
        by_case.setdefault(cell.case, []).append(cell)
    for of_case in by_case.values():
        first = of_case[0]
        if first.extent_is_common:
            chosen = by_size({cell.size: verdict(cell) for cell in of_case}, first.otherwise)
        else:
            chosen = for_all_sizes(of_case, verdict, speed)
        if chosen:
            found[first.otherwise][first.operation] = {str(nbytes): name for nbytes, name in chosen.items()}
    return found


def for_all_sizes(cells: Sequence[Cell], verdict: Verdict, speed: Speed) -> dict[int, str]:
    """The algorithm that runs at all sizes, because the ranks cannot know which size a call has: one that won at some,
    and was slower at none, short ones among them. Of several, the one that was fastest on the whole."""
    if min(cell.size for cell in cells) > SHORTEST:
        return {}
    won = [name for cell in cells if (name := verdict(cell))]
    able = [name for name in dict.fromkeys(won) if all(speed(cell, name) >= NOT_SLOWER for cell in cells)]
    return {0: max(able, key=lambda name: mean([speed(cell, name) for cell in cells]))} if able else {}


def by_size(winners: Mapping[int, str | None], otherwise: str) -> dict[int, str]:
    """From which bytes on which algorithm runs. A schedule runs from the size on where it won. What runs otherwise
    begins again halfway between that size and the one where nothing won, as a picture with logarithmic axes has it."""
    found: dict[int, str] = {}
    chosen, before = otherwise, 0
    for size in sorted(winners):
        name = winners[size] or otherwise
        if name != chosen:
            found[isqrt(before * size) if name == otherwise else size] = name
        chosen, before = name, size
    return found


def read(file: str, number: int, given: Any) -> Record | None:
    """A section of a table with its times; None if it has none. Times of algorithms that have changed since are left
    out. Raises ArgumentError."""
    about = section(file, number, given)
    if about.cpu is None or not given.get("times"):
        return None
    unlike = cache(about.unlike)  # it asks an algorithm about every root, and there are thousands of times
    try:
        launches = {each["key"]: Launch(**each) for each in given["launches"]}
        found = Record(about.cpu, about.mpi, about.ranks, about.oversubscribed, given["environment"], launches,
                       given["model"])  # fmt: skip
        for each in given["times"]:
            cell = Cell(each["case"], each["size"])
            current = {
                n: us for n, us in each["p50_us"].items() if n == cell.otherwise or not unlike(cell.operation, n)
            }
            found.times.append(Time(each["launch"], cell, each["pages"], current))
            assert each["launch"] in launches, f"no launch {each['launch']}"
            assert cell.otherwise in each["p50_us"], f"no time of {cell.otherwise}"
            assert type(cell.size) is int, f"size {cell.size!r}"
            assert 0 < cell.size < 1 << 60, f"size {cell.size}"
            assert type(each["pages"]) is str, f"pages {each['pages']!r}"
            assert all(0 < us < inf for us in each["p50_us"].values()), f"times {each['p50_us']}"
        assert all(isinstance(launch.began, str) for launch in launches.values()), "a launch that began at no time"
        assert isinstance(found.environment, dict), f"environment {found.environment!r}"
        if found.model is not None:
            from_dict(found.model)
    except (KeyError, TypeError, AttributeError, AssertionError, ArgumentError) as e:
        raise ArgumentError("mpicoll", f"{file}: sections[{number}]", "launches and their times", repr(e)) from None
    return found
