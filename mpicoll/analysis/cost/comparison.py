"""The costs of several algorithms for one collective, and which of them is the fastest for which vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import isnan
from multiprocessing import active_children, get_context
from signal import SIG_IGN, SIGINT, signal
from typing import Any, NamedTuple, TypeVar

from mpicoll import algorithms
from mpicoll.analysis.cost.machines import Machine
from mpicoll.analysis.cost.simulation import costs
from mpicoll.errors import MpicollError
from mpicoll.units import duration, size_text

Result = TypeVar("Result")


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
    root: int
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
            "root": self.root,
            "machine": self.machine.as_dict(),
            "sizes": list(self.sizes),
            "seconds": {name: [None if isnan(t) else t for t in times] for name, times in self.seconds.items()},
            "not_costed": self.notes,
            "fastest": [r._asdict() for r in self.ranges],
        }


def compared(
    collective: str,
    names: Sequence[str] | None,
    ranks: int,
    root: int,
    machine: Machine,
    sizes: Sequence[int],
    processes: int = 1,
) -> Comparison:
    """Cost these algorithms, or all that serve so many ranks and this root.

    With several ``processes``, which are forked, several algorithms are costed at once. Raises ArgumentError for ranks
    that the machine cannot hold, or an algorithm that cannot serve them.
    """
    chosen = names or [a.name for a in algorithms.algorithms(collective) if not a.declines(ranks, root)]
    cost = partial(costs, collective, size=ranks, machine=machine, nbytes=sizes, root=root)
    several = min(processes, len(chosen)) > 1
    found = dict(in_processes(cost, chosen, processes) if several else ((name, cost(name)) for name in chosen))
    notes = {name: found[name].note for name in chosen if found[name].note}
    seconds = {name: found[name].seconds.tolist() for name in chosen}
    return Comparison(collective, ranks, root, machine, tuple(sizes), seconds, notes)


def in_processes(work: Callable[[str], Result], names: Sequence[str], processes: int) -> Iterator[tuple[str, Result]]:
    """What ``work`` returns for each name, from so many forked processes, as it comes.

    Raises what ``work`` raises, and MpicollError if a process ends early. Only this process hears Ctrl-C. Whatever ends
    the work, no process is left.
    """
    before = {*active_children()}
    pool = ProcessPoolExecutor(processes, get_context("fork"), signal, (SIGINT, SIG_IGN))
    try:
        futures = {pool.submit(work, name): name for name in names}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise MpicollError("a process that costed an algorithm ended early: was there too little memory?") from error
    finally:
        for process in {*active_children()} - before:
            process.kill()
        pool.shutdown(cancel_futures=True)


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
