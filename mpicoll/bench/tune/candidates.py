"""Which algorithms are measured at all. The cost model leaves candidates out. It accepts none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from mpicoll import algorithms
from mpicoll.algorithms.collectives import even_and_uneven
from mpicoll.algorithms.digests import digest
from mpicoll.analysis.cost.machines import Machine
from mpicoll.analysis.cost.simulation import costs
from mpicoll.bench.tune.cells import Cell
from mpicoll.bench.tune.statistics import Speedups, mean, worse
from mpicoll.calls import select
from mpicoll.calls.choice import CICO

__all__ = ["different", "expected", "still"]

MOST = 4
"""Candidates of a cell in its first launch."""
FACTOR = 2.0
"""A candidate is left out if the model expects it to take so many times as long as the fastest."""
NO_MORE = 0.95
"""Below this mean speed-up a candidate is not measured again, and neither is one that is so much slower than the best
candidate."""


@cache
def different(operation: str, ranks: int) -> tuple[str, ...]:
    """The schedules of a Communicator's method that serve so many ranks, those that take the same steps only once."""
    table, uneven = even_and_uneven(operation)
    able = [a for a in algorithms.algorithms(table.name) if a.uneven or not uneven]
    found = [a for a in able if not any(a.declines(ranks, root) for root in range(ranks))]
    by_steps: dict[str, str] = {}
    for each in found:
        by_steps.setdefault(digest(each, ranks), each.name)
    return tuple(by_steps.values())


def expected(case: str, sizes: Sequence[int], ranks: int, machine: Machine | None) -> Mapping[Cell, list[str]]:
    """The candidates of each size, those first that the model expects to be fast. Without a model, all are. The model
    does not know ``cico``, so that it is always one."""
    cells = [Cell(case, size) for size in sizes]
    first = cells[0]
    names = different(first.operation, ranks)
    always = [CICO] if CICO in select.names(first.operation) else []
    if machine is None or not names:
        return {cell: [*always, *names] for cell in cells}
    times = {n: costs(first.collective.name, n, ranks, machine, [*sizes]).seconds for n in names}
    found = {}
    for i, cell in enumerate(cells):
        by_time = sorted(names, key=lambda name: float(times[name][i]))
        least = float(times[by_time[0]][i])
        found[cell] = [*always, *[name for name in by_time if float(times[name][i]) <= FACTOR * least][:MOST]]
    return found


def still(names: Sequence[str], seen: Speedups) -> list[str]:
    """Those that may still be accepted, after what was seen."""
    means = {name: mean(worse(seen[name])) for name in names if seen.get(name)}
    best = max(means.values(), default=0.0)
    return [name for name in names if name not in means or means[name] >= NO_MORE * max(1.0, best)]
