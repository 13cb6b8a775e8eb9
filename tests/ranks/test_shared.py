"""Memory in which the ranks of a node meet: who has it, and what is done where there is none."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

import mpicoll
from mpicoll.calls.choose import NODE
from mpicoll.machine import shared_memory
from tests.sharing import NEEDED

pytestmark = NEEDED


def mapped() -> int:
    """How many blocks of memory that ranks share this process has."""
    gc.collect()  # what earlier tests have left would be given back at any moment
    return Path("/proc/self/maps").read_text().count("/memfd:mpicoll")


def used(comm: mpicoll.Communicator) -> bool:
    """Some calls are right; whether the kernel made them. All ranks know whether it does."""
    routes = set()
    for count in (1, 100_000):
        x = np.arange(count, dtype=np.float64)
        comm.allreduce(x, out=x)
        assert np.array_equal(x, comm.size * np.arange(count))
        routes.add(comm.last_route)
    mine = routes == {NODE}
    assert routes == ({NODE} if mine else {"native"})
    assert comm._engine.info.kernel == comm._engine.fabric.info.shares_memory == mine
    assert comm.allgather_object(mine) == [mine] * comm.size
    return mine


def test_it_is_made_with_the_communicator_and_given_back() -> None:
    mpicoll.Communicator().free()  # from the first one on, the process has connections for its watcher
    before, files = mapped(), len(os.listdir("/proc/self/fd"))
    with mpicoll.Communicator() as comm:
        assert mapped() == before + comm.size
        assert used(comm)
        part = comm.split(0)
        assert part is not None
        assert used(part)
        assert mapped() == before + 2 * comm.size
        assert len(os.listdir("/proc/self/fd")) == files
        part.free()
    assert mapped() == before
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_rank_that_does_not_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with mpicoll.Communicator() as plain:
        if plain.rank == plain.size - 1:
            monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "0")
        with mpicoll.Communicator() as comm:
            assert not used(comm)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left")


def test_no_memory_left_for_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others hear of it. A communicator that has its memory goes on."""
    with mpicoll.Communicator() as comm:
        if comm.rank == 0:
            monkeypatch.setattr(os, "posix_fallocate", full)
        with mpicoll.Communicator() as later:
            assert not used(later)
        assert used(comm)


def test_a_file_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another namespace a rank's number may be that of another process, with another file of that number."""
    with mpicoll.Communicator() as plain:
        if plain.rank == 0:
            monkeypatch.setattr(shared_memory, "mark_of", lambda pid, file: 1)
        with mpicoll.Communicator() as comm:
            assert not used(comm)


def test_a_file_of_another_process_that_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read beyond its end would kill the rank."""
    with mpicoll.Communicator() as plain:
        if plain.rank == 0:
            monkeypatch.setattr(shared_memory, "new_file", lambda nbytes: os.memfd_create("mpicoll-"))
        with mpicoll.Communicator() as comm:
            assert not used(comm)


def test_no_file_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with mpicoll.Communicator() as plain:
        if plain.rank == 0:
            monkeypatch.setattr(shared_memory, "new_file", lambda nbytes: os.pipe()[1])
        with mpicoll.Communicator() as comm:
            assert not used(comm)


def test_all_communicators_together_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond it have none, until others are freed. One rank's budget decides for all."""
    gc.collect()
    before = {*shared_memory._own}
    with mpicoll.Communicator() as world:
        [one] = [block.nbytes for block in list(shared_memory._own) if block not in before]
        held = sum(block.nbytes for block in list(shared_memory._own))
        if world.rank == 0:
            monkeypatch.setattr(shared_memory, "BUDGET", held + 2 * one + one // 2)
        groups = [part for part in (world.split(0) for _ in range(4)) if part is not None]
        assert [used(part) for part in groups] == [True, True, False, False]
        groups.pop(0).free()
        gc.collect()
        again = world.split(0)
        assert again is not None
        assert used(again)
        assert not used(groups[1])  # it was refused, and stays as it is
        for part in (*groups, again):
            part.free()
