"""The tuner: what it measures, in which order, and what it keeps."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from os import cpu_count
from typing import NamedTuple

import mpicoll
from mpicoll.analysis.cost.machines import from_dict
from mpicoll.bench.tune.candidates import expected, still
from mpicoll.bench.tune.cells import Cell, kinds
from mpicoll.bench.tune.file import TableFile
from mpicoll.bench.tune.launches import Found, Launching, Order, Progress
from mpicoll.bench.tune.record import Launch, Record, Time
from mpicoll.bench.tune.statistics import LAUNCHES, promises
from mpicoll.errors import LaunchError
from mpicoll.machine.cpu import fingerprint
from mpicoll.units import count, size_text

__all__ = ["Group", "Tuner", "once_more", "wanted"]

MOST = 8
"""The most launches of a cell that stays undecided."""
WAVE = 240.0
"""The most seconds of work that the same launches do. The more it is, the fewer launches start, and the further apart
are those of a cell."""
OLD = timedelta(hours=1)
"""A cell that was decided so long ago is measured once more: what wins in one hour may lose in the next."""
START = 1.5
"""Seconds that a launch takes besides its cells, until one was seen."""
PER_BYTE = 2.5e-9
"""Seconds that an algorithm takes for each byte of a cell's vector, until it was seen. The first launch takes longer,
and later ones leave slow algorithms out."""


class Group(NamedTuple):
    """What is measured together: the sizes of one case among so many ranks."""

    case: str
    ranks: int
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.case} among {count(self.ranks, 'rank')}"


@dataclass
class Tuner:
    """Measures ``groups``, the first ones first, for about ``budget`` seconds, and keeps everything in ``file``."""

    groups: Sequence[Group]
    file: TableFile
    budget: float
    launch: Launching
    records: dict[int, Record] = field(default_factory=dict)
    """By number of ranks."""
    candidates: dict[Group, Mapping[Cell, list[str]]] = field(default_factory=dict)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self._ends = time.monotonic() + self.budget
        self._old = _text(datetime.now(UTC) - OLD)
        self._start = START
        self._took: dict[tuple[int, Cell], float] = {}

    @property
    def left(self) -> float:
        return self._ends - time.monotonic()

    def run(self, progress: Progress) -> None:
        """Go on until everything is decided, or time is up, or somebody presses Ctrl-C. What was decided long ago comes
        last."""
        try:
            self._look(progress)
            progress.write(self.said())
            while not self.interrupted and (work := self._work()):
                if not all(self._round(wave, progress) for wave in self._waves(work)):
                    break
        except KeyboardInterrupt:
            self.interrupted = True

    # -- before anything is measured --------------------------------------------------------------------------------

    def _look(self, progress: Progress) -> None:
        """Ask a launch of each number of ranks where it runs. The first one also finds the model's figures, if the
        table does not have them."""
        known = self.file.records()
        model = next((r.model for r in known if r.cpu == fingerprint() and r.model), None)
        for ranks in dict.fromkeys(group.ranks for group in self.groups):
            fit = model is None
            found = self.launch(ranks, Order(fit=fit), f"a look at {count(ranks, 'rank')}", progress)
            about = {key: value for said in found.said for key, value in said.items()}
            if found.interrupted or "environment" not in about:
                raise KeyboardInterrupt if found.interrupted else LaunchError(f"tune: {about.get('refused')}")
            self._start = min(self._start, found.seconds) if fit else found.seconds
            model = model or about.get("model")
            e = about["environment"]
            new = Record(e["fingerprint"], e["mpi"], ranks, e["oversubscribed"], e)
            for record in known:
                if record.setting == new.setting:
                    new.join(record)
            new.model = model
            self.records[ranks] = new
        machine = None if model is None else from_dict(model)
        for group in self.groups:
            self.candidates[group] = expected(group.case, group.sizes, group.ranks, machine)

    def said(self) -> str:
        """What will be measured, and how long that takes."""
        lines = []
        for case in dict.fromkeys(map(str, self.groups)):
            groups = [group for group in self.groups if str(group) == case]
            cells = [each for group in groups for each in self._cells(group)]
            sizes = ", ".join(size_text(cell.size) for cell, _ in cells)
            names = dict.fromkeys(name for _, each in cells for name in each)
            again = "" if any(map(self._undecided, groups)) else "once more "
            lines.append(f"# {case}: {again}{sizes} of {', '.join(names)}" if cells else f"# {case}: all is decided")
        seconds = sum(map(self._expected, self._waves([group for group in self.groups if self._cells(group)])))
        lines.append(
            f"# about {_duration(seconds)} for all, of which this run takes {_duration(self.budget)} at most; "
            f"{LAUNCHES + 1} launches decide"
        )
        return "\n".join(lines)

    def _launches(self, group: Group) -> int:
        """How many more launches a group takes at least."""
        record = self.records[group.ranks]
        return max((max(1, LAUNCHES + 1 - len(record.of(cell))) for cell, _ in self._cells(group)), default=0)

    # -- the work -----------------------------------------------------------------------------------------------------

    def _work(self) -> list[Group]:
        """The groups with undecided cells, and if there are none, those with cells that were decided long ago."""
        return [group for group in self.groups if self._undecided(group)] or [
            group for group in self.groups if self._cells(group)
        ]

    def _cells(self, group: Group) -> list[tuple[Cell, list[str]]]:
        """The cells of a group that are to be measured, each with the algorithms that are to take turns: those that
        are undecided, and if there are none, those that were decided long ago."""
        found = self._undecided(group)
        if not found:
            record = self.records[group.ranks]
            found = {c: once_more(record, c, names, self._old) for c, names in self.candidates[group].items()}
        return [(cell, [cell.otherwise, *names]) for cell, names in found.items() if names]

    def _undecided(self, group: Group) -> dict[Cell, list[str]]:
        """The undecided cells of a group with the candidates that are left."""
        record = self.records[group.ranks]
        found = {cell: wanted(record, cell, names) for cell, names in self.candidates[group].items()}
        return {cell: names for cell, names in found.items() if names}

    def _expected(self, wave: Sequence[Group]) -> float:
        """The seconds of all launches of a wave."""
        turns = max(map(self._launches, wave), default=0)
        return turns * len({group.ranks for group in wave}) * self._start + sum(map(self._work_of, wave))

    def _work_of(self, group: Group) -> float:
        """The seconds of measuring in all launches of a group."""
        return self._launches(group) * sum(self._expected_of(group.ranks, *each) for each in self._cells(group))

    def _expected_of(self, ranks: int, cell: Cell, names: Sequence[str]) -> float:
        seen = self._took.get((ranks, cell))
        if seen is not None:
            return seen
        pages = kinds(self.records[ranks].environment["huge_pages"])
        crowd = max(1.0, ranks / (cpu_count() or 1))
        return len(pages) * (0.15 + len(names) * cell.size * PER_BYTE * crowd)

    def _waves(self, work: Sequence[Group]) -> Iterator[list[Group]]:
        """The groups that are measured in the same launches: at least one, and no more than the time that is left is
        enough for. A few that are decided are worth more than many that are not."""
        wave: list[Group] = []
        for group in work:
            longer = [*wave, group]
            if wave and (sum(map(self._work_of, longer)) > WAVE or self._expected(longer) > self.left):
                yield wave
                longer = [group]
            wave = longer
        if wave:
            yield wave

    def _round(self, wave: Sequence[Group], progress: Progress) -> bool:
        """Measure the groups as often as they need, in launches of each number of ranks that take turns. False if time
        is up, or somebody pressed Ctrl-C."""
        for turn in range(LAUNCHES + 1):
            for ranks in dict.fromkeys(group.ranks for group in wave):
                groups = [group for group in wave if group.ranks == ranks and self._cells(group)]
                cells = [each for group in groups for each in self._cells(group)]
                if not cells:
                    continue
                if self._took and self.left < self._start + self._expected_of(ranks, *cells[0]):
                    return False  # but each run goes on at least by a launch
                others = f" and {count(len(groups) - 1, 'other')}" if len(groups) > 1 else ""
                what = f"{groups[0].case}{others} among {count(ranks, 'rank')}, turn {turn + 1} of {LAUNCHES + 1}"
                self._keep(ranks, self.launch(ranks, Order(cells, at_most=self.left), what, progress))
                if self.interrupted:
                    return False
        return True

    def _keep(self, ranks: int, found: Found) -> None:
        """Add what a launch has found to the table."""
        record, key = self.records[ranks], secrets.token_hex(4)
        took: dict[Cell, float] = {}
        for said in found.said:
            if "case" in said:
                cell = Cell(said["case"], said["size"])
                record.times.append(Time(key, cell, said["pages"], said["p50_us"]))
                took[cell] = took.get(cell, 0.0) + said["seconds"]
        self._took |= {(ranks, cell): seconds for cell, seconds in took.items()}
        if took:
            record.launches[key] = Launch(key, _text(datetime.now(UTC)), mpicoll.__version__)
            self._start = found.seconds - sum(took.values())
            self.file.add(record)
        self.interrupted = found.interrupted


def wanted(record: Record, cell: Cell, names: Sequence[str]) -> list[str]:
    """The candidates that the next launch is to measure; none if the cell is decided."""
    launches, seen = len(record.of(cell)), record.speedups(cell)
    left = still(names, seen)
    if launches <= LAUNCHES:
        return left
    if launches >= MOST or record.verdict(cell) is not None:
        return []
    return [name for name in left if name in seen and promises(seen[name])]


def once_more(record: Record, cell: Cell, names: Sequence[str], old: str) -> list[str]:
    """The candidates of a decided cell that are to be measured once more: those that came near, if its latest launch
    began before the time ``old``."""
    return still(names, record.speedups(cell)) if record.latest(cell) < old else []


def _text(time: datetime) -> str:
    """As launches say when they began."""
    return time.isoformat(timespec="milliseconds")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
