"""What people type and read: bytes with K, M and G as binary units, counts, ranks, and lines of a program."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

Said = TypeVar("Said", bound=Hashable)

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def nbytes(text: str) -> int | None:
    """The number of bytes that ``text`` means, such as ``65536``, ``64K`` or ``64KiB``. None if it is not positive,
    or if ``text`` is no such number."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        return None
    return int(match[1]) * _UNITS[match[2].upper()] or None


def size_text(n: int) -> str:
    """Bytes in the largest binary unit that divides them: 65536 is 64K."""
    if n == 0:
        return "0"
    unit = next(unit for unit in reversed(_UNITS) if n % _UNITS[unit] == 0)
    return f"{n // _UNITS[unit]}{unit}"


def count(number: int, noun: str) -> str:
    """A number with its noun: 1 rank, 2 ranks."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def named(ranks: Sequence[int]) -> str:
    """Sorted numbers of ranks as people name them: rank 2, ranks 0-3, 8."""
    return f"rank{'s' * (len(ranks) > 1)} {ranges(ranks, ', ')}"


def named_in(job: Sequence[int], ranks: Sequence[int]) -> str:
    """Sorted ranks of a communicator as people name them. Its rank r is the ``job``'s rank ``job[r]``, which is said,
    too, where the numbers differ: rank 1 (the job's rank 2)."""
    there = sorted(job[r] for r in ranks) if job else [*ranks]
    return named(ranks) if there == [*ranks] else f"{named(ranks)} (the job's {named(there)})"


def line_named(file: str, line: int) -> str:
    """A line of a program as people name it: ``star.py:12``, or ``Cell In[3]:12`` in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cell = None if shell is None else shell.compile.format_code_name(file)
    return f"{' '.join(cell) if cell else Path(file).name}:{line}"


def ranges(numbers: Sequence[int], between: str = ",") -> str:
    """Sorted numbers as 0-3,8."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return between.join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def alike(ranks: Mapping[int, Said]) -> dict[Said, list[int]]:
    """What there is to say of the ranks, each with those of whom it is said."""
    found: dict[Said, list[int]] = {}
    for rank, said in ranks.items():
        found.setdefault(said, []).append(rank)
    return found


def rows(said: Sequence[tuple[Sequence[int], str]]) -> list[str]:
    """A table's lines, each of ranks and what is said of them."""
    width = max(len(named(ranks)) for ranks, _ in said)
    return [f"  {named(ranks):{width}}  {text}" for ranks, text in said]


def duration(seconds: float) -> str:
    """The time as three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * scale:  # 0.9996 ms is 1 ms in three digits
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
