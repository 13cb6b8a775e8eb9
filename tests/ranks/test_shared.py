"""Memory that the ranks of a node share: who has it, what goes through it, and what is done where there is none."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

import mpicoll
from mpicoll.algorithms.steps import OUTPUT, Place, Recv, Send, Steps, one
from mpicoll.calls.call import Call
from mpicoll.calls.choice import NATIVE, Choice
from mpicoll.calls.plan import Bound, Plan, Workspace
from mpicoll.calls.select import Traits
from mpicoll.communicator.engine import binding
from mpicoll.fabrics.routes import cico
from mpicoll.fabrics.transports import shared
from mpicoll.machine import caches, shared_memory
from tests import oracle

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory"),
]

LONG = 3 * shared.SLOT + 8
"""Bytes of a message: four pieces in two places, and the last piece is short."""


def mapped() -> int:
    """How many blocks of memory that ranks share this process has, besides the pages on which they meet."""
    gc.collect()  # what earlier tests have left would be given back at any moment
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:mpicoll" in line]
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return sum(end - start > shared.PAGE for start, end in spans)


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


@pytest.mark.slow
def test_it_is_made_when_it_is_needed_and_given_back() -> None:
    mpicoll.Communicator().free()  # from the first one on, the process has connections for its watcher
    gc.collect()
    before, files = mapped(), len(os.listdir("/proc/self/fd"))
    comm = mpicoll.Communicator()
    comm.allreduce(np.ones(8), algorithm="ring")
    assert mapped() == before
    assert comm._engine.binding.traits.shares
    assert used(comm)
    part = comm.split(0)
    assert part is not None
    assert part._engine.binding.traits.shares
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
            assert not comm._engine.binding.traits.shares
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
            assert not later._engine.binding.traits.shares
            assert not used(later)


def test_a_file_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another namespace a rank's number may be that of another process, with another file of that number."""
    with mpicoll.Communicator() as plain:
        if plain.rank == 0:
            monkeypatch.setattr(shared_memory, "mark_of", lambda pid, file: 1)
        with mpicoll.Communicator() as comm:
            assert not comm._engine.binding.traits.shares
            assert not used(comm)


def test_a_file_of_another_process_that_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read beyond its end would kill the rank."""
    with mpicoll.Communicator() as plain:
        if plain.rank == 0:
            monkeypatch.setattr(shared_memory, "new_file", lambda nbytes: os.memfd_create("mpicoll-"))
        with mpicoll.Communicator() as comm:
            assert not comm._engine.binding.traits.shares
            assert not used(comm)


def test_no_file_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with mpicoll.Communicator() as plain:
        if plain.rank == 0:
            monkeypatch.setattr(shared_memory, "new_file", lambda nbytes: os.pipe()[1])
        with mpicoll.Communicator() as comm:
            assert not comm._engine.binding.traits.shares
            assert not used(comm)


@pytest.mark.slow
def test_all_communicators_together_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond it use messages, until others are freed. One rank's budget decides for all."""
    gc.collect()
    with mpicoll.Communicator() as world:
        one = 2 * (world.size - 1) * shared._slot_bytes(world.size) + cico.Places.NBYTES
        held = sum(block.nbytes for block in list(shared_memory._own))
        if world.rank == 0:
            monkeypatch.setattr(shared_memory, "BUDGET", held + 2 * one + one // 2)
        groups = [part for part in (world.split(0) for _ in range(4)) if part is not None]
        assert [used(part) for part in groups] == [True, True, False, False]
        assert [part._engine.binding.traits.shares for part in groups] == [True, True, False, False]
        before = mapped()
        groups.pop(0).free()
        gc.collect()
        assert mapped() == before - world.size
        again = world.split(0)
        assert again is not None
        assert used(again)
        assert not used(groups[1])  # it was refused, and stays as it is
        for part in (*groups, again):
            part.free()


def test_ranks_choose_alike_when_memory_turns_out_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ranks hand their calls in before that is known, some after, and some find the plan of before."""

    def by_memory(operation: str, reduction: object, nbytes: int, traits: Traits, *_: object) -> str:
        return "ring" if traits.shares else "native"

    monkeypatch.setattr(binding, "select", by_memory)
    with mpicoll.Communicator() as comm:
        bound: list[object] = []
        bind = comm._engine.fabric.bind

        def noting(call: Call, choice: Choice, workspace: Workspace) -> Plan:
            bound.append(choice)
            return bind(call, choice, workspace)

        monkeypatch.setattr(comm._engine.fabric, "bind", noting)
        xs = [np.ones(LONG // 8) for _ in range(3)]

        def plan(i: int) -> Bound:
            return comm._engine.plan("allreduce", xs[i], op="sum")

        assert comm._engine.binding.traits.shares
        first, second = plan(0), plan(1) if comm.rank == 0 else None
        if comm.rank == comm.size - 1:
            monkeypatch.setattr(os, "posix_fallocate", full)
        for step in (first, second or plan(1), plan(0), plan(2)):
            comm._engine.carry_out(step, "allreduce")
        assert not comm._engine.binding.traits.shares
        assert set(bound) == {NATIVE}
        assert [x[0] for x in xs] == [comm.size**2, comm.size, comm.size]


def test_a_plan_of_before_is_bound_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that needs no memory leaves it open whether there is any; the plan of that call is kept."""
    how = {True: "native", False: "ring"}
    monkeypatch.setattr(binding, "select", lambda c, r, n, traits, root, name: name or how[traits.shares])
    with mpicoll.Communicator() as comm:
        x, y = np.ones(LONG // 8), np.ones(LONG // 8)
        comm.allreduce(x, out=x)  # "native", and kept on all ranks
        monkeypatch.setattr(os, "posix_fallocate", full)
        comm.allreduce(y, out=y, algorithm="recursive_doubling")
        assert not comm._engine.binding.traits.shares
        # One rank has the plan of before, and the others have none.
        z = x if comm.rank == 0 else np.full(LONG // 8, float(comm.size))
        comm.allreduce(z, out=z)
        assert (z == comm.size**2).all()


@pytest.mark.mpi(min_size=3)
def test_too_many_ranks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of them may have it nevertheless."""
    monkeypatch.setattr(shared, "MEMORY", 2 * shared.LEAST_SLOT)
    with mpicoll.Communicator() as comm:
        assert not comm._engine.binding.traits.shares
        assert not used(comm)
        part = comm.split(comm.rank // 2)
        assert part is not None
        assert part._engine.binding.traits.shares == (part.size == 2)
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


def test_elements_longer_than_a_slot() -> None:
    """Their messages go through MPI."""
    with mpicoll.Communicator() as comm:
        given = np.full(2, 7, np.dtype([("a", "u1", (shared.SLOT + 5,))]))
        x = given.copy() if comm.rank == 0 else np.zeros_like(given)
        comm.bcast(x, algorithm="chain")
        assert x.tobytes() == given.tobytes()  # NumPy compares such elements for a minute


def all_at_once(at: Place) -> Steps:
    """The root sends everything in one step, and the others take one block after another."""
    if at.rank == at.root:
        yield tuple(Send(peer, one(b), OUTPUT) for b in range(3) for peer in range(at.size) if peer != at.root)
    else:
        for b in range(3):
            yield (Recv(at.root, one(b), OUTPUT),)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("overwrites", [False, True])
def test_messages_that_both_ends_have_in_different_steps(overwrites: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "both_help", lambda cpu: overwrites)
    mpicoll.register(mpicoll.Algorithm("bcast", "all_at_once", all_at_once, lambda at: 3))
    with mpicoll.Communicator() as comm:
        given = np.arange(LONG)
        for root in range(comm.size):
            x = given + root if comm.rank == root else np.zeros_like(given)
            comm.bcast(x, root, algorithm="all_at_once")
            assert np.array_equal(x, given + root)
