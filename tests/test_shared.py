"""Memory that the ranks of a node share: who has it, what goes through it, and what is done where there is none."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

import mpicoll
from mpicoll import algorithms
from mpicoll.machine import shared_memory
from mpicoll.routes import shared
from mpicoll.schedule import OUTPUT, Place, Recv, Send, Steps, one
from tests import oracle

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory"),
]

LONG = 3 * shared.PLACE + 8
"""Bytes of a message: four pieces in two places, and the last piece is short."""


def mapped() -> int:
    """How many blocks of memory that ranks share this process has."""
    return Path("/proc/self/maps").read_text().count("/memfd:mpicoll")


def used(comm: mpicoll.Communicator) -> bool:
    """An all-reduce of a long vector is right; whether it brought memory to share."""
    before = mapped()
    x = np.arange(LONG * comm.size / 8)
    comm.allreduce(x, out=x, algorithm="ring")
    assert np.array_equal(x, comm.size * np.arange(x.size))
    return mapped() == before + comm.size


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "bfloat16", "float32", "complex128"])
def test_long_messages_of_every_size_of_element(dtype: str) -> None:
    with mpicoll.Communicator() as comm:
        fill = np.random.default_rng(7)
        inputs = [oracle.values(fill, dtype, (LONG // 2,)) for _ in range(comm.size)]
        before = mapped()
        gathered = comm.allgather(inputs[comm.rank], algorithm="ring")
        for row, given in zip(gathered, inputs, strict=True):
            np.testing.assert_array_equal(row, given)
        assert mapped() == before + comm.size


def test_it_is_made_when_it_is_needed_and_given_back() -> None:
    gc.collect()
    before, files = mapped(), len(os.listdir("/proc/self/fd"))
    comm = mpicoll.Communicator()
    comm.allreduce(np.ones(8), algorithm="ring")
    assert mapped() == before
    assert comm.ranks.shares
    assert used(comm)
    part = comm.split(0)
    assert part is not None
    assert part.ranks.shares
    assert used(part)
    assert len(os.listdir("/proc/self/fd")) == files
    part.free()
    comm.free()
    gc.collect()
    assert mapped() == before
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_rank_that_does_not_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with mpicoll.Communicator() as plain:
        if plain.rank == plain.size - 1:
            monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "0")
        with mpicoll.Communicator() as comm:
            assert not comm.ranks.shares
            assert not used(comm)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left")


def test_no_memory_left_for_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """First for the trial page, then for the places: the others hear of it, and messages are MPI's."""
    with mpicoll.Communicator() as comm:
        if comm.rank == 0:
            monkeypatch.setattr(os, "posix_fallocate", full)
        assert not used(comm)
        with mpicoll.Communicator() as later:
            assert not later.ranks.shares
            assert not used(later)


def test_a_file_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another namespace a rank's number may be that of another process, with another file of that number."""
    with mpicoll.Communicator() as plain:
        if plain.rank == 0:
            new = shared_memory._new
            monkeypatch.setattr(shared_memory, "_new", lambda nbytes, mark: new(nbytes, mark[::-1]))
        with mpicoll.Communicator() as comm:
            assert not comm.ranks.shares
            assert not used(comm)


@pytest.mark.mpi(min_size=3)
def test_too_many_ranks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of them may have it nevertheless."""
    monkeypatch.setattr(shared, "MEMORY", 2 * shared.WORTH)
    with mpicoll.Communicator() as comm:
        assert not comm.ranks.shares
        assert not used(comm)
        part = comm.split(comm.rank // 2)
        assert part is not None
        assert part.ranks.shares == (part.size == 2)
        assert used(part) == (part.size == 2)
        part.free()


def test_an_alltoallv_is_the_same_before_and_after() -> None:
    """Its ranks do not all know how long it is: one may find the plan of before, and another bind a new one."""
    with mpicoll.Communicator() as comm:
        counts = [shared.LEAST] * comm.size
        x = np.full(sum(counts), comm.rank, np.uint8)
        outs = [np.empty_like(x), np.empty_like(x)]
        comm.alltoallv(x, counts, counts, out=outs[0], algorithm="pairwise")
        assert used(comm)
        out = outs[0 if comm.rank == 0 else 1]
        comm.alltoallv(x, counts, counts, out=out, algorithm="pairwise")
        assert np.array_equal(out, np.repeat(np.arange(comm.size), shared.LEAST))


def all_at_once(at: Place) -> Steps:
    """The root sends everything in one step, and the others take one block after another."""
    if at.rank == at.root:
        yield tuple(Send(peer, one(b), OUTPUT) for b in range(3) for peer in range(at.size) if peer != at.root)
    else:
        for b in range(3):
            yield (Recv(at.root, one(b), OUTPUT),)


def test_messages_that_both_ends_have_in_different_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "_REGISTRY", dict(algorithms._REGISTRY))
    mpicoll.register(mpicoll.Algorithm("bcast", "all_at_once", all_at_once, lambda at: 3))
    with mpicoll.Communicator() as comm:
        given = np.arange(LONG)
        for root in range(comm.size):
            x = given + root if comm.rank == root else np.zeros_like(given)
            comm.bcast(x, root, algorithm="all_at_once")
            assert np.array_equal(x, given + root)
