"""What ranks do with memory that goes from one core's cache to another's."""

from __future__ import annotations

import numpy as np
import pytest

from mpicoll.machine import caches

AMD = "AuthenticAMD AMD EPYC, family 25 model 17 stepping 1, L2 1024K of 1, L3 32768K of 2"
LONG = 2 << 20


@pytest.mark.parametrize(
    ("cpu", "overwrites"),
    [(AMD, True), (AMD.replace("17", "1"), False), (AMD.replace("AuthenticAMD", "GenuineIntel"), False), ("", False)],
)
def test_only_on_cpus_on_which_it_was_measured(cpu: str, overwrites: bool) -> None:
    assert caches.both_help(cpu) is overwrites


@pytest.mark.parametrize("overwrites", [False, True])
@pytest.mark.parametrize("dtype", ["u4", "f4", "c16"])
def test_overwritten(dtype: str, overwrites: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "both_help", lambda cpu: overwrites)
    n = caches._LEAST // np.dtype(dtype).itemsize
    whole = np.ones(3 * n, dtype)
    for step in (*caches.overwritten(whole[n : 2 * n]), *caches.overwritten(whole[: n - 1])):
        step()
    assert whole.reshape(3, n).sum(1).tolist() == [n, n * (not overwrites), n]


@pytest.mark.parametrize("nbytes", [LONG - 1, LONG])
@pytest.mark.parametrize(("to", "from_", "size"), [(0, 0, 800), (8, 16, 800), (1, 0, 800), (0, 4, 800), (0, 0, 801)])
def test_copied(to: int, from_: int, size: int, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop copies pieces of long vectors, if they are words and lie at words."""
    monkeypatch.setattr(caches, "both_help", lambda cpu: True)
    target, source = np.zeros(1000, np.uint8), np.random.default_rng(1).integers(1, 255, 1000, np.uint8)
    copies = caches.copied(target[to : to + size], source[from_ : from_ + size], nbytes)
    words = to % 8 == from_ % 8 == size % 8 == 0
    assert (copies.func is np.positive) == (words and nbytes >= LONG)
    copies()
    assert (target[to : to + size] == source[from_ : from_ + size]).all()
    assert np.count_nonzero(target) == size
    monkeypatch.setattr(caches, "both_help", lambda cpu: False)
    assert caches.copied(target[:800], source[:800], LONG).func is np.copyto
