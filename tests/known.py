"""Algorithms by name, for tests."""

from __future__ import annotations

from mpicoll.algorithms import Algorithm, find


def known(collective: str, name: str) -> Algorithm:
    found = find(collective, name)
    assert found is not None
    return found
