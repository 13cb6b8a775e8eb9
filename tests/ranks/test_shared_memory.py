"""Memory that the node's ranks share: who gets it, how it is kept and given back, and what children see."""

from __future__ import annotations

import errno
import gc
import os
import resource
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mpicoll
from mpicoll.calls.choose import NODE, SHARED
from mpicoll.communicator import memory
from mpicoll.errors import ArgumentError, DtypeError, StateError
from mpicoll.machine import blocks, shared_memory
from tests.ranks.children import in_child
from tests.sharing import LONG, NEEDED

MIB = 1 << 20

pytestmark = [*NEEDED, pytest.mark.sizes(2, 4)]


def test_memory_is_used_again(comm: mpicoll.Communicator) -> None:
    comm.empty(LONG).fill(0)
    before = len(os.listdir("/proc/self/fd"))
    address = {comm.empty(LONG).ctypes.data for _ in range(1000)}
    assert len(address) <= 2
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def kept() -> int:
    """Bytes of memory in files of this process's that no other name has."""
    found = 0
    for file in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{file}").startswith("/memfd:mpicoll-"):
                found += os.stat(f"/proc/self/fd/{file}").st_blocks * 512
    return found


def test_memory_is_given_back(comm: mpicoll.Communicator) -> None:
    before = kept()
    lengths = [MIB * n for n in (40, 44, 48, 52, 56, 60, 64, 40, 44)]
    for n in lengths:
        x = comm.zeros(n, np.uint8)
        assert not x.any()
        x[-1] = 1
        del x
    assert kept() - before <= max(blocks.LEAST_FREE, blocks.FACTOR * max(lengths)) + max(lengths)
    assert kept() - before < sum(lengths) // 2


def test_what_free_blocks_have_goes_first_where_memory_is_short(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "LEAST_FREE", 1 << 30)  # so that free blocks are kept
    other = [comm.empty(n * MIB, np.uint8) for n in (20, 24)]
    other.clear()
    there = kept() + 4 * MIB
    monkeypatch.setattr(shared_memory, "free_memory", lambda: there - kept())
    x = comm.empty(28 * MIB, np.uint8)
    assert blocks.own_at(x.ctypes.data, x.nbytes) is not None
    del x
    assert all(each.nbytes == 30 * MIB for each in comm.shared(30 * MIB, np.uint8))


def test_many_arrays_leave_files_to_the_program(comm: mpicoll.Communicator) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 60, hard))
    memory._warn.cache_clear()
    try:
        with warnings.catch_warnings(record=True):
            arrays = [comm.zeros(LONG + i * blocks.LEAST) for i in range(80)]
        left = [os.open("/dev/null", os.O_RDONLY) for _ in range(10)]
        for file in left:
            os.close(file)
        assert not blocks.may_adopt()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert any(blocks.own_at(x.ctypes.data, x.nbytes) is None for x in arrays)
    for x in arrays[:: len(arrays) - 1]:
        x.fill(1)
        comm.allreduce(x, out=x)
        assert (x == comm.size).all()


def test_what_is_not_shared(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    def lies_in_a_block(x: Any) -> bool:
        return blocks.own_at(x.ctypes.data, x.nbytes) is not None

    assert lies_in_a_block(comm.empty((4, blocks.LEAST), np.uint8))
    assert not lies_in_a_block(comm.empty(blocks.LEAST - 1, np.uint8))
    assert not lies_in_a_block(np.empty(LONG))
    assert comm.empty(LONG, object)[0] is None
    assert comm.empty(LONG, "(2,)i4").shape == (LONG, 2)
    assert comm.empty((), np.float32).shape == ()
    monkeypatch.setattr(blocks, "MOST", 0)
    memory._warn.cache_clear()
    if comm.rank == 0:
        with pytest.warns(UserWarning, match="ordinary arrays: this process has 0 blocks of memory .* the most"):
            assert not lies_in_a_block(comm.empty(12_345_678, np.uint8))
    else:
        assert not lies_in_a_block(comm.empty(12_345_678, np.uint8))


def test_none_where_a_rank_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ["RANK"] == "1":
        monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "0")
    memory._warn.cache_clear()
    with mpicoll.Communicator() as comm:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = comm.zeros(LONG)
            comm.empty(LONG)
            comm.empty(1)
        said = ["mpicoll: comm.empty makes ordinary arrays: the ranks share no memory (`mpicoll doctor`)"]
        assert [str(each.message) for each in caught] == (said if comm.rank == 0 else [])
        assert all(each.filename == __file__ for each in caught)
        assert blocks.own_at(x.ctypes.data, x.nbytes) is None
        for _ in range(3):
            comm.allreduce(x, out=x)
            assert comm.last_route == "native"
        assert not used(comm)


def test_a_free_block_whose_memory_does_not_come_back(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left alone: to write to it would kill the process."""
    nbytes = 13 * LONG  # no other test has left a free block of this length
    address = (x := comm.empty(nbytes, np.uint8)).ctypes.data
    block = blocks.own_at(address, nbytes)
    del x
    assert block.empty()
    with monkeypatch.context() as patch:
        patch.setattr(blocks.ShmSegment, "fill", lambda _: False)
        other = comm.empty(nbytes, np.uint8)
    assert other.ctypes.data != address
    assert comm.empty(nbytes, np.uint8).ctypes.data == address


def test_a_child_process_makes_arrays_of_its_own(comm: mpicoll.Communicator) -> None:
    """Not in the blocks that are free in its parent."""
    inherited = comm.zeros(LONG)
    del inherited
    in_child(lambda: comm.empty(LONG).fill(666))
    assert not (comm.empty(LONG) == 666).any()


def test_children_share_their_parents_arrays(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they drop is not given back."""
    monkeypatch.setattr(blocks, "LEAST_FREE", 0)
    monkeypatch.setattr(blocks, "FACTOR", 0)
    x, others, arrays = comm.zeros(LONG), [comm.empty(LONG) for _ in range(4)], comm.shared(LONG)
    for each in others:
        each.fill(7)
    comm.barrier()

    def check() -> None:
        x[0] = 1
        others.clear()
        for each in arrays:
            each[comm.rank] = 7

    in_child(check)
    comm.barrier()
    assert x[0] == 1
    assert all((each[: comm.size] == 7).all() for each in arrays)
    assert all((each == 7).all() for each in others)
    comm.allreduce(x, out=x)
    assert (x[0], comm.last_route) == (comm.size, SHARED)


WRONG: list[tuple[Any, Any, str]] = [
    (-1, "f4", "shape"), ((2, -3), "f4", "shape"), (1.5, "f4", "shape"), ("ab", "f4", "shape"),
    ((1,) * 70, "f4", "shape"), (2**62, "f4", "shape"), ((0, 2**70), "f4", "shape"), (4, "nothing", "dtype"),
    (4, [("a", "f4")] * 2, "dtype"), (4, torch.float32, "dtype"), (4, object, "dtype"), (4, "S", "dtype"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:mpicoll. comm.empty makes ordinary arrays")
@pytest.mark.parametrize(("shape", "dtype", "argument"), WRONG)
def test_bad_input(comm: mpicoll.Communicator, shape: Any, dtype: Any, argument: str) -> None:
    for name in ("empty", "shared"):
        if name == "empty" and dtype in (object, "S"):
            continue  # an ordinary array may have any dtype
        with pytest.raises(ArgumentError, match=f"{name}: {argument}: expected .*; given") as caught:
            getattr(comm, name)(shape, dtype)
        assert caught.type is (DtypeError if argument == "dtype" else ArgumentError)


def test_other_wrong_arguments(comm: mpicoll.Communicator) -> None:
    with pytest.raises(ArgumentError, match="empty_like: x: expected an array of NumPy's; given"):
        comm.empty_like([1.0])  # type: ignore[arg-type]
    other = int(comm.rank == 0)
    with pytest.raises(ArgumentError, match=rf"expected those of rank {other}, \({2 + other},\) of float64"):
        comm.shared(2 + min(comm.rank, 1))
    with pytest.raises(StateError, match="cannot share"):
        comm.shared(2**59)
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 0:
            patch.setenv("MPICOLL_SHARED_MEMORY", "0")
        with pytest.raises(StateError, match="shared: the ranks cannot share 24 bytes each"):
            mpicoll.Communicator().shared(3)
    assert len(comm.shared(3)) == comm.size


@pytest.mark.parametrize(
    ("shape", "dtype"), [(5, "float64"), ((3, 70_000), "uint8"), ((), "complex64"), ((0, 4), "f4")]
)
def test_shared(shape: Any, dtype: str) -> None:
    with mpicoll.Communicator() as comm:
        arrays = comm.shared(shape, dtype)
        assert len(arrays) == comm.size
        for each in arrays:
            assert each.shape == ((shape,) if isinstance(shape, int) else shape)
            assert each.dtype == np.dtype(dtype)
            assert not each.any()
        comm.barrier()
        for turn in range(20):
            arrays[(comm.rank + turn) % comm.size][...] = 7 * comm.rank + turn  # one rank writes each
            comm.barrier()
            for r, each in enumerate(arrays):
                assert (each == 7 * ((r - turn) % comm.size) + turn).all()
            comm.barrier()


@pytest.mark.slow
def test_shared_is_given_back() -> None:
    with mpicoll.Communicator() as comm:
        before, files = mapped(), len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            arrays = comm.shared(1 << 20)
            part = arrays[-1][3:5]
            part[0] = 1.0
            del arrays
        assert mapped() == before + 1
        del part
        assert mapped() == before
        assert len(os.listdir("/proc/self/fd")) == files


# -- memory in which the ranks meet --


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
    assert comm._engine.info.shares_memory == mine
    assert comm.allgather_object(mine) == [mine] * comm.size
    return mine


def test_it_is_made_with_the_communicator_and_given_back() -> None:
    mpicoll.Communicator().free()  # from the first one on, the process has connections for its watcher
    before, files = mapped(), len(os.listdir("/proc/self/fd"))
    with mpicoll.Communicator() as comm:
        assert mapped() == before + comm.size
        assert used(comm)
        part = comm.split(0)
        assert used(part)
        assert mapped() == before + 2 * comm.size
        assert len(os.listdir("/proc/self/fd")) == files
        part.free()
    assert mapped() == before
    assert len(os.listdir("/proc/self/fd")) == files


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


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("mark_of", lambda pid, file: 1),  # in another namespace, a rank's number may be another process's
        ("new_file", lambda nbytes: os.memfd_create("mpicoll-")),  # to read beyond its end would kill the rank
        ("new_file", lambda nbytes: os.pipe()[1]),
    ],
    ids=["another file", "shorter", "none"],
)
def test_a_file_of_another_process_that_is_shorter(
    name: str, wrong: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or another one, or none."""
    with mpicoll.Communicator() as plain:
        if plain.rank == 0:
            monkeypatch.setattr(shared_memory, name, wrong)
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
        groups = [world.split(0) for _ in range(4)]
        assert [used(part) for part in groups] == [True, True, False, False]
        groups.pop(0).free()
        gc.collect()
        again = world.split(0)
        assert used(again)
        assert not used(groups[1])  # it was refused, and stays as it is
        for part in (*groups, again):
            part.free()


def test_a_rank_that_is_alone_shares_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its communicators, of which there may be many, take no memory that ranks share."""
    with mpicoll.Communicator() as world:
        before = {*shared_memory._own}
        monkeypatch.setattr(shared_memory, "BUDGET", 0)
        part = world.split(world.rank)
        assert {*shared_memory._own} == before
        part.barrier()
        assert part.last_route == NODE
        part.free()
