"""Bytes as people type and read them: with K, M and G as binary units."""

from __future__ import annotations

import re

__all__ = ["nbytes", "size_text"]

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
