"""Bytes as people type and read them: with K, M and G as binary units."""

from __future__ import annotations

import re

__all__ = ["nbytes", "size_text"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def nbytes(text: str) -> int | None:
    """The positive number of bytes that ``text`` gives, as ``65536``, ``64K`` or ``64KiB``; None if it gives none."""
    found = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    return (int(found[1]) * _UNITS[found[2].upper()] or None) if found else None


def size_text(n: int) -> str:
    """Bytes in the largest binary unit that divides them: 65536 is 64K."""
    unit = next(u for u in reversed(_UNITS) if n % _UNITS[u] == 0 and (n or not u))
    return f"{n // _UNITS[unit]}{unit}"
