"""The costs of several algorithms for one collective, and which of them is the fastest for which vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from typing import Any, NamedTuple

from mpicoll import algorithms
from mpicoll.analysis.cost.machines import Machine
from mpicoll.analysis.cost.simulation import costs
from mpicoll.units import duration, size_text


class Range(NamedTuple):
    """The algorithm is the fastest of those compared, from the first of these sizes to the last."""

    first: int
    last: int
    algorithm: str


@dataclass(frozen=True)
class Comparison:
    """``seconds[algorithm]`` are the times for each size, NaN where there is none. Then ``notes`` say why."""

    collective: str
    ranks: int
    machine: Machine
    sizes: tuple[int, ...]
    seconds: dict[str, list[float]]
    notes: dict[str, str]

    def winner(self, i: int) -> str | None:
        """The fastest for the i-th size, or the first of several that are equally fast. None if none was costed."""
        found = {name: times[i] for name, times in self.seconds.items() if not isnan(times[i])}
        return min(found, key=found.__getitem__, default=None)

    @property
    def ranges(self) -> list[Range]:
        """The sizes, joined where they have the same winner."""
        won = ((name, [*run]) for name, run in groupby(range(len(self.sizes)), self.winner))
        return [Range(self.sizes[run[0]], self.sizes[run[-1]], name) for name, run in won if name is not None]

    def as_dict(self) -> dict[str, Any]:
        """Everything that is written to a JSON file. Times are in seconds, null where there is none."""
        return {
            "schema": "mpicoll-simulate/1",
            "collective": self.collective,
            "ranks": self.ranks,
            "machine": self.machine.as_dict(),
            "sizes": list(self.sizes),
            "seconds": {name: [None if isnan(t) else t for t in times] for name, times in self.seconds.items()},
            "not_costed": self.notes,
            "fastest": [r._asdict() for r in self.ranges],
        }


def compared(collective: str, names: Sequence[str], ranks: int, machine: Machine, sizes: Sequence[int]) -> Comparison:
    """Cost these algorithms, or without any name all that serve so many ranks, with rank 0 as the root. Raises
    ArgumentError for ranks that the machine cannot hold, or an algorithm that cannot serve them."""
    chosen = names or [a.name for a in algorithms.algorithms(collective) if not a.declines(ranks, 0)]
    found = {name: costs(collective, name, ranks, machine, sizes) for name in chosen}
    notes = {name: each.note for name, each in found.items() if each.note}
    seconds = {name: each.seconds.tolist() for name, each in found.items()}
    return Comparison(collective, ranks, machine, tuple(sizes), seconds, notes)


def table(c: Comparison) -> str:
    """The times as a table, with the fastest of each size marked, and then the sizes for which each is the fastest."""
    rows = [["size", *c.seconds]]
    for i, n in enumerate(c.sizes):
        best = c.winner(i)
        cells = [("" if isnan(t[i]) else duration(t[i])) + " *"[name == best] for name, t in c.seconds.items()]
        rows.append([size_text(n), *cells])
    rows[0][1:] = [name + " " for name in rows[0][1:]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append("")
    for r in c.ranges:
        to = f"to {size_text(r.last)}" if r.last > r.first else ""
        lines.append(f"{size_text(r.first):>6} {to:<9} {r.algorithm}")
    lines += [f"not costed where blank: {name}, {note}" for name, note in c.notes.items()]
    return "\n".join(lines)
