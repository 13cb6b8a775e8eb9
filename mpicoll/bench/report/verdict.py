"""A sentence for each collective that says which backend is the fastest for which sizes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpicoll.bench.report.rows import Row, grouped
from mpicoll.units import size_text

__all__ = ["verdict"]

_ALIKE = 1.05
"""Times within this factor count as equal: the fastest backend of the size before is then named again."""
_MOST_RANGES = 4


@dataclass
class _Range:
    """Successive sizes with the same fastest backend, and how many times as long the next one takes at each size."""

    backend: str
    sizes: list[int]
    ratios: list[float]

    def __str__(self) -> str:
        first, last = size_text(self.sizes[0]), size_text(self.sizes[-1])
        where = "" if not self.sizes[-1] else f" at {first}" if first == last else f" from {first} to {last}"
        low, high = (f"{ratio:.2g}" for ratio in (min(self.ratios), max(self.ratios)))
        return f"{self.backend}{where} ({low if low == high else f'{low} to {high}'} times as fast as the next)"


def verdict(rows: Sequence[Row]) -> str:
    """Comment lines. There are none if fewer than two backends can be compared."""
    lines = [
        textwrap.fill(f"{name}: {said}", 80, initial_indent="# ", subsequent_indent="#   ")
        for name, of_name in grouped(rows, "collective").items()
        if (said := _said(of_name))
    ]
    caveats = {f"# {row.backend} is not compared: {row.caveat}" for row in rows if not row.comparable}
    return "\n".join([*lines, *sorted(caveats)])


def _said(rows: Sequence[Row]) -> str:
    ranges = list(_ranges(rows))
    if len(ranges) <= _MOST_RANGES:
        return f"the fastest is {', then '.join(map(str, ranges))}." if ranges else ""
    counts = {name: sum(len(each.sizes) for each in mine) for name, mine in grouped(ranges, "backend").items()}
    often = sorted(counts.items(), key=lambda item: -item[1])
    return "the fastest changes from size to size: " + ", ".join(f"{name} at {n} sizes" for name, n in often) + "."


def _ranges(rows: Sequence[Row]) -> Iterator[_Range]:
    current: _Range | None = None
    for size, of_size in grouped(rows, "size").items():
        times = {row.backend: row.p50_us for row in of_size if row.is_usual and row.comparable}
        if len(times) < 2:
            continue
        best = min(times, key=times.__getitem__)
        if current and times.get(current.backend, float("inf")) < _ALIKE * times[best]:
            best = current.backend
        ratio = min(t for name, t in times.items() if name != best) / times[best]
        if current is None or current.backend != best:
            if current:
                yield current
            current = _Range(best, [], [])
        current.sizes.append(size)
        current.ratios.append(ratio)
    if current:
        yield current
