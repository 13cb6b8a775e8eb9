"""A sentence for each collective that says which backend is the fastest for which sizes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpicoll.bench.report.measurements import Line, Report
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


def verdict(report: Report) -> str:
    """Comment lines. There are none if fewer than two backends can be compared."""
    lines = [
        textwrap.fill(f"{collective.name}: {said}", 80, initial_indent="# ", subsequent_indent="#   ")
        for collective in report.collectives
        if (said := _said([line for line in report.lines if line.case.name == collective.name]))
    ]
    caveats = {f"# {m.backend} is not compared: {m.caveat}" for _, m in report.measurements if not m.comparable}
    return "\n".join([*lines, *sorted(caveats)])


def _said(lines: Sequence[Line]) -> str:
    ranges = list(_ranges(lines))
    if len(ranges) <= _MOST_RANGES:
        return f"the fastest is {', then '.join(map(str, ranges))}." if ranges else ""
    counts: dict[str, int] = {}
    for each in ranges:
        counts[each.backend] = counts.get(each.backend, 0) + len(each.sizes)
    often = sorted(counts.items(), key=lambda item: -item[1])
    return "the fastest changes from size to size: " + ", ".join(f"{name} at {n} sizes" for name, n in often) + "."


def _ranges(lines: Sequence[Line]) -> Iterator[_Range]:
    current: _Range | None = None
    for size in dict.fromkeys(line.case.bytes for line in lines):
        of_size = [m for line in lines if line.case.bytes == size and (m := line.usual)]
        times = {m.backend: m.p50 for m in of_size if m.comparable}
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
