"""What the tuner measures on."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpicoll.bench.tune.cells import huge_bytes, kinds, new_arrays
from mpicoll.machine.pages import HUGE
from mpicoll.machine.system import huge_pages

LENGTHS = (1 << 14, 1 << 18, HUGE, (5 * HUGE) // 2, 1 << 14)


def test_arrays_of_each_kind_are_apart() -> None:
    for kind in kinds("madvise"):
        new = new_arrays(kind)
        arrays = [new(nbytes) for nbytes in LENGTHS for _ in range(3)]
        for i, array in enumerate(arrays):
            array.fill(i)
        assert [set(array.tolist()) for array in arrays[::5]] == [{i} for i in range(0, len(arrays), 5)]
        assert [len(array) for array in arrays] == [nbytes for nbytes in LENGTHS for _ in range(3)]
        assert {array.ctypes.data % 64 for array in arrays} == {0}


@pytest.mark.skipif(huge_pages() not in ("always", "madvise"), reason="this system has no huge pages for arrays")
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="this system does not tell of its pages")
@pytest.mark.parametrize("nbytes", [1 << 14, 1 << 20, 3 * HUGE])
def test_arrays_lie_on_the_pages_that_they_are_made_for(nbytes: int) -> None:
    for kind, least, most in (("small", 0, 0), ("huge", HUGE, 6 * HUGE + 4 * nbytes)):
        before, new = huge_bytes(), new_arrays(kind)
        arrays = [new(nbytes) for _ in range(4)]
        for array in arrays:
            array.fill(1)
        assert least <= huge_bytes() - before <= most
