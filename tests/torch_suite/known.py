"""The tests of PyTorch's suite that fail over mpicoll, and why."""

from __future__ import annotations

KNOWN: dict[str, str] = {}
