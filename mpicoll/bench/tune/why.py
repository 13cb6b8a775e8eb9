"""What a call would take here, and why: ``python -m mpicoll.bench.tune.why COLLECTIVE BYTES`` as the ranks of a job.

The ranks make a communicator as any program does, so that the answer is the one that a program gets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from mpicoll.algorithms.collectives import even_and_uneven
from mpicoll.arrays.dtypes import DTYPES, reduction
from mpicoll.bench.tune.file import TableFile
from mpicoll.bench.tune.record import Record
from mpicoll.bench.tune.statistics import lower_bound, mean, worse
from mpicoll.calls.select import explained
from mpicoll.communicator.communicator import Communicator
from mpicoll.communicator.face import engine_of
from mpicoll.units import size_text

__all__ = ["main", "seen"]


def main(name: str, nbytes: int) -> None:
    """Print what a collective of float32 takes. Collective; rank 0 prints."""
    with Communicator() as comm:
        engine = engine_of(comm)
        engine.fabric.settle()
        traits = engine.binding.traits
        total = reduction("sum", DTYPES["float32"], name) if even_and_uneven(name)[0].reduces else None
        chosen, why = explained(name, total, nbytes, traits)
        held = traits.rules.table.of(traits.size)
        if comm.rank:
            return
        print(f"{name} of {size_text(nbytes)} among {traits.size} ranks: {chosen}")
        print(f"  because: {why}")
        if held is not None:
            print(f"  table: {held.file}")
            records = [] if held.refused else TableFile(Path(held.file)).records()
            record = next((each for each in records if each.setting == held.setting), None)
            print("\n".join(seen(record, name, nbytes, chosen)))


def seen(record: Record | None, name: str, nbytes: int, chosen: str) -> Iterator[str]:
    """Lines on the times that were seen at the longest measured size that is no longer than the call."""
    cells = [] if record is None else [c for c in record.cells if c.case == name and c.size <= nbytes and record.of(c)]
    if record is None or not cells:
        yield "  times: the table keeps none for it"
        return
    cell = max(cells)
    launches = record.of(cell)
    medians: dict[str, float] = {}
    for algorithm in dict.fromkeys(n for each in launches for n in next(iter(each.values())).p50_us):
        there = [max(t.p50_us[algorithm] for t in each.values()) for each in launches
                 if all(algorithm in t.p50_us for t in each.values())]  # fmt: skip
        if there:
            medians[algorithm] = mean(there)
    best = min(medians, key=lambda each: medians[each])
    yield f"  times at {size_text(cell.size)}, on the worse kind of pages, of {len(launches)} launches:"
    speedups = record.speedups(cell)
    for algorithm, us in sorted(medians.items(), key=lambda each: each[1]):
        each = worse(speedups.get(algorithm, ()))
        gain = f"  {mean(each):.2f}x, at least {lower_bound(each):.2f}x" if len(each) > 1 else ""
        yield f"    {algorithm:20} {us:10.1f} us{gain}"
    if chosen in medians:
        yield f"  regret: {medians[chosen] / medians[best] - 1:.0%} against {best}, the best that was seen"
    else:
        yield f"  regret: unknown, because {chosen} was not measured at this size"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
