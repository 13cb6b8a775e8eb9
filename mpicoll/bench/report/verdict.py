"""A sentence for each collective that says which backend is the fastest for which sizes."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from mpicoll.bench.report.rows import Row, grouped
from mpicoll.units import count, rough, size_text

_ALIKE = 1.05
"""Times within this factor count as equal: the fastest backend of the size before is then named again."""
_MOST_RANGES = 4


def verdict(rows: Sequence[Row]) -> str:
    """Comment lines. There are none if fewer than two backends can be compared."""
    lines = [
        textwrap.fill(f"{name}: {said}", 80, initial_indent="# ", subsequent_indent="#   ")
        for name, of_name in grouped(rows, "collective").items()
        if (said := _said([*_fastest(of_name)]))
    ]
    caveats = {f"# {row.backend} is not compared: {row.caveat}" for row in rows if not row.comparable}
    return "\n".join([*lines, *sorted(caveats)])


def _fastest(rows: Sequence[Row]) -> Iterator[tuple[str, int, float]]:
    """For each size at which backends can be compared: the fastest, and how many times as long the next one takes."""
    best = ""
    for size, of_size in grouped(rows, "size").items():
        times = {row.backend: row.p50_us for row in of_size if row.is_usual and row.comparable}
        if len(times) > 1:
            least = min(times, key=times.__getitem__)
            if times.get(best, float("inf")) >= _ALIKE * times[least]:
                best = least
            yield best, size, min(us for name, us in times.items() if name != best) / times[best]


def _said(found: Sequence[tuple[str, int, float]]) -> str:
    ranges = [_range(backend, of_backend) for backend, of_backend in groupby(found, lambda each: each[0])]
    if len(ranges) <= _MOST_RANGES:
        return f"the fastest is {', then '.join(ranges)}." if ranges else ""
    often = Counter(backend for backend, _, _ in found).most_common()
    each = ", ".join(f"{name} at {count(n, 'size')}" for name, n in often)
    return f"the fastest changes from size to size: {each}."


def _range(backend: str, found: Iterable[tuple[str, int, float]]) -> str:
    """Successive sizes with the same fastest backend."""
    _, sizes, ratios = zip(*found, strict=True)
    first, last = size_text(sizes[0]), size_text(sizes[-1])
    where = "" if last == "0" else f" at {first}" if first == last else f" from {first} to {last}"
    low, high = rough(min(ratios)), rough(max(ratios))
    among = f"up to {high}" if min(ratios) < 1 else low if low == high else f"{low} to {high}"
    return f"{backend}{where} ({'about' if high == '1' else f'{among} times'} as fast as the next)"
