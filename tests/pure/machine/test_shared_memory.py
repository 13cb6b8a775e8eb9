"""Files in memory, as a process maps them, and their huge pages."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mpicoll.machine import shared_memory
from mpicoll.machine.linux import SHARES
from mpicoll.machine.shared_memory import HUGE, LEAST_HUGE, Mapping, fill
from mpicoll.machine.system import huge_pages

pytestmark = pytest.mark.skipif(not SHARES, reason="this system has no files in memory")

LENGTHS = (1, 16 << 10, LEAST_HUGE - 1, LEAST_HUGE, LEAST_HUGE + 1, 3 * HUGE + 12_345)
LINUX = tuple(int(n) for n in platform.release().split("-")[0].split(".")[:2])


@pytest.fixture
def file() -> Iterator[int]:
    made = os.memfd_create("mpicoll-test")
    yield made
    os.close(made)


Ranges = list[tuple[int, int]]
"""Where each one starts and stops."""


def addresses() -> tuple[int, Ranges]:
    """How many mappings of the file this process has, and what addresses it has reserved for no memory.

    What the C library reserves for a thread's heap does not count: a heap grows with any array. It ends at a multiple
    of 64 MiB."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    ends = [line[0].split("-") for line in lines if line[1] == "---p"]
    none = [(int(start, 16), int(stop, 16)) for start, stop in ends]
    return sum("mpicoll-test" in line[-1] for line in lines), [each for each in none if each[1] % (64 << 20)]


def reserved_since(before: Ranges) -> int:
    """The bytes of addresses that are reserved now and were not before. What other tests have left may end meanwhile:
    the stacks of threads, and the memory of devices."""
    now = addresses()[1]
    both = sum(max(0, min(stop, end) - max(start, begin)) for start, stop in now for begin, end in before)
    return sum(stop - start for start, stop in now) - both


def mapped_by_huge_pages(address: int) -> int:
    """Bytes of the mapping at this address that are mapped by huge pages."""
    of_it = Path("/proc/self/smaps").read_text().split(f"{address:x}-")[1]
    [line] = [line for line in of_it.split("VmFlags")[0].splitlines() if line.startswith("ShmemPmdMapped:")]
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("nbytes", LENGTHS)
def test_all_of_a_file_is_there_and_nothing_beside_it(file: int, nbytes: int) -> None:
    mappings, before = addresses()
    assert fill(file, nbytes)
    stat = os.fstat(file)
    assert (stat.st_size, stat.st_blocks * 512 >= nbytes) == (nbytes, True)
    whole, again = Mapping(file, nbytes), Mapping(file, nbytes)
    assert (addresses()[0], reserved_since(before)) == (mappings + 2, 0)
    values = np.arange(nbytes, dtype=np.uint8)
    np.asarray(whole)[:] = values
    np.testing.assert_array_equal(np.asarray(again), values)
    del whole, again
    assert (addresses()[0], reserved_since(before)) == (mappings, 0)


@pytest.mark.skipif(huge_pages("shmem_enabled") in (None, "deny"), reason="this system has no huge pages for files")
@pytest.mark.skipif(huge_pages("shmem_enabled") == "never" and LINUX < (6, 1), reason="from Linux 6.1 on")
@pytest.mark.parametrize("nbytes", LENGTHS)
def test_long_files_have_huge_pages(file: int, nbytes: int) -> None:
    assert fill(file, nbytes)
    one, other = Mapping(file, nbytes), Mapping(file, nbytes)
    for mapping in (one, other):
        np.asarray(mapping).fill(1)
        found = mapped_by_huge_pages(mapping.address)
        assert found % HUGE == 0
        assert (0 < found <= nbytes) if nbytes >= LEAST_HUGE else found == 0  # the system may be short of some


def test_without_huge_pages(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "huge_pages", lambda which: "deny")
    assert fill(file, LEAST_HUGE)
    mapping = Mapping(file, LEAST_HUGE)
    np.asarray(mapping).fill(1)
    assert mapped_by_huge_pages(mapping.address) == 0
    assert os.fstat(file).st_blocks * 512 == LEAST_HUGE


def test_memory_that_was_given_back_has_huge_pages_again(file: int) -> None:
    assert fill(file, LEAST_HUGE)
    mapping = Mapping(file, LEAST_HUGE)
    np.asarray(mapping).fill(1)
    had = mapped_by_huge_pages(mapping.address)
    assert shared_memory.give_back(file, LEAST_HUGE)
    assert os.fstat(file).st_blocks == 0
    assert fill(file, LEAST_HUGE)
    assert not np.asarray(mapping).any()
    assert mapped_by_huge_pages(mapping.address) == had


def test_a_file_that_cannot_be_mapped_leaves_no_address() -> None:
    mappings, before = addresses()
    with open(os.devnull) as unfit, pytest.raises(OSError, match="mmap"):
        shared_memory.map_file(unfit.fileno(), LEAST_HUGE)
    assert (addresses()[0], reserved_since(before)) == (mappings, 0)
