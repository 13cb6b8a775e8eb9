"""Memory that the node's ranks share: who gets it, how it is kept and given back, and what children see."""

from __future__ import annotations

import errno
import gc
import os
import resource
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mpicoll
from mpicoll.calls.choose import SHARED
from mpicoll.communicator import memory
from mpicoll.errors import ArgumentError, DtypeError, MessageError, StateError
from mpicoll.fabrics.mpi import MPIFabric
from mpicoll.fabrics.routes import node
from mpicoll.machine import blocks, shared_memory
from tests.sharing import NEEDED

LONG = 8 * blocks.LEAST
"""Elements: enough of them for any dtype."""
MIB = 1 << 20

pytestmark = [*NEEDED, pytest.mark.sizes(2, 4)]


@pytest.fixture
def comm() -> Iterator[mpicoll.Communicator]:
    with mpicoll.Communicator() as made:
        yield made


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
        comm.allreduce(x, out=x)
        assert comm.last_route == SHARED
        assert (x[0], x[-1]) == (0, comm.size)
        del x
    assert kept() - before <= max(blocks.LEAST_FREE, blocks.FACTOR * max(lengths)) + max(lengths)
    assert kept() - before < sum(lengths) // 2


def test_how_much_all_blocks_keep(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LEAST_FREE", 0)
    monkeypatch.setattr(blocks._pool, "_most_used", 0)
    blocks._pool.empty()
    before = kept()
    for n in (20, 23, 26, 29, 32):
        arrays = [comm.empty(n * MIB, np.uint8) for _ in range(3)]
        assert kept() - before <= blocks.FACTOR * 3 * n * MIB + n * MIB
        arrays.clear()


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


def test_an_absurd_length_hides_no_other_reason(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "free_memory", lambda: 0)
    memory._warn.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for nbytes in (1 << 50, (1 << 50) + 1, 90 * MIB):
            with suppress(MemoryError):
                comm.empty(nbytes, np.uint8)
    lengths = ["1,099,511,627,776 to 2,199,023,255,552 KiB", "65,536 to 131,072 KiB"]
    why = "mpicoll: comm.empty makes ordinary arrays: the system gives no memory that ranks can share for one of"
    assert [str(each.message) for each in caught] == [f"{why} {n}" for n in lengths if comm.rank == 0]


def test_a_child_process_gives_nothing_back_of_its_parents(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "LEAST_FREE", 0)
    monkeypatch.setattr(blocks, "FACTOR", 0)
    x, others = comm.empty(LONG), [comm.empty(LONG) for _ in range(4)]
    x.fill(7)
    child = os.fork()
    if child == 0:
        del x, others
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (x == 7).all()


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


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("number", "why"), [(errno.ENOMEM, r"this process may have no more memory \(ulimit -v\)"), (errno.EIO, "Errno 5")]
)
def test_memory_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, number: int, why: str) -> None:
    def refuses(place: blocks.Place) -> None:
        raise OSError(number, "the system's word")

    with mpicoll.Communicator() as comm:
        monkeypatch.setattr(node, "opened", refuses)
        x = comm.zeros(LONG)
        what = rf"allreduce: the \d+ bytes of memory that rank 0 gives \(process \d+\) cannot be opened: .*{why}"
        with pytest.raises(MessageError, match=what):
            comm.allreduce(x, out=x)


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


@pytest.mark.parametrize(
    ("shape", "dtype", "argument"),
    [(-1, "f4", "shape"), ((2, -3), "f4", "shape"), (1.5, "f4", "shape"), ("ab", "f4", "shape"),
     ((2, None), "f4", "shape"), ((1,) * 70, "f4", "shape"), (2**62, "f4", "shape"), ((0, 2**70), "f4", "shape"),
     (4, "nothing", "dtype"), (4, [("a", "f4")] * 2, "dtype"), (4, torch.float32, "dtype")],
)  # fmt: skip
def test_bad_input(comm: mpicoll.Communicator, shape: Any, dtype: Any, argument: str) -> None:
    with pytest.raises(ArgumentError, match=f"empty: {argument}: expected .*; given") as caught:
        comm.empty(shape, dtype)
    with pytest.raises(ArgumentError, match="empty_like: x: expected an array of NumPy's; given"):
        comm.empty_like([1.0])  # type: ignore[arg-type]
    assert caught.type is (DtypeError if argument == "dtype" else ArgumentError)


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
        why = "the ranks cannot share arrays, or one of them has MPICOLL_SHARED_MEMORY=0 (`mpicoll doctor` says more)"
        said = [f"mpicoll: comm.empty makes ordinary arrays: {why}"]
        assert [str(each.message) for each in caught] == (said if comm.rank == 0 else [])
        assert all(each.filename == __file__ for each in caught)
        assert blocks.own_at(x.ctypes.data, x.nbytes) is None
        for _ in range(3):
            comm.allreduce(x, out=x)
            assert comm.last_route == "native"


def test_a_free_block_whose_memory_does_not_come_back(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left alone: to write to it would kill the process."""
    nbytes = 3 * LONG
    address = (x := comm.empty(nbytes, np.uint8)).ctypes.data
    block = blocks.own_at(address, nbytes)
    assert block is not None
    del x
    assert block.empty()
    with monkeypatch.context() as patch:
        patch.setattr(blocks.ShmSegment, "fill", lambda _: False)
        other = comm.empty(nbytes, np.uint8)
    assert other.ctypes.data != address
    assert comm.empty(nbytes, np.uint8).ctypes.data == address


def test_none_in_an_elastic_job(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    memory._warn.cache_clear()
    monkeypatch.setattr(MPIFabric, "elastic", property(lambda fabric: fabric))
    fabric = comm._engine.fabric
    monkeypatch.setattr(fabric, "info", replace(fabric.info, shares_memory=False))
    if comm.rank == 0:
        with pytest.warns(UserWarning, match="ordinary arrays: the job is elastic"):
            comm.empty(LONG)
    else:
        comm.empty(LONG)


@pytest.mark.parametrize("is_free", [True, False])
def test_a_handler_makes_an_array_while_another_is_made(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch, is_free: bool
) -> None:
    """Each gets memory of its own: a block that is free, or a new one. Nor does a finalizer touch what is half
    changed."""
    n, made = 5 * LONG + 1, list[Any]()
    held = [comm.empty(n) for _ in range(8)]
    where, what = (blocks._Pool, "_claim") if is_free else (blocks, "new_file")
    change = getattr(where, what)

    def interrupted(*given: Any) -> Any:
        if not made:
            made.append(None)
            made[0] = comm.empty(n)
        return change(*given)

    if is_free:
        held.clear()
    monkeypatch.setattr(where, what, interrupted)
    kept = [comm.empty(n), *made, *(comm.empty(n) for _ in range(3))]
    assert len(kept) == 5
    assert all(blocks.own_at(each.ctypes.data, each.nbytes) is not None for each in kept)
    assert len({each.ctypes.data for each in kept}) == 5


def test_a_child_process_makes_arrays_of_its_own(comm: mpicoll.Communicator) -> None:
    """Not in the blocks that are free in its parent."""
    inherited = comm.zeros(LONG)
    del inherited
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        own = comm.empty(LONG)
        own.fill(666)
        del own
        os.write(write, b"!")
        os._exit(0)
    x = comm.zeros(LONG)
    assert os.read(read, 1) == b"!"
    assert os.waitpid(child, 0)[1] == 0
    os.close(read)
    os.close(write)
    assert not x.any()


@pytest.mark.filterwarnings("ignore:mpicoll. comm.empty makes ordinary arrays")
def test_arrays_that_are_too_long_for_any_file(comm: mpicoll.Communicator) -> None:
    for call in (comm.empty, comm.shared):
        with pytest.raises(ArgumentError, match=r"shape: expected that of an array of NumPy's; given .* too big"):
            call(2**62)
    with pytest.raises(StateError, match="cannot share"):
        comm.shared(2**59)


def test_a_child_process_has_the_same_memory(comm: mpicoll.Communicator) -> None:
    x = comm.zeros(LONG)
    child = os.fork()
    if child == 0:
        x[0] = 1
        del x
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert x[0] == 1
    comm.allreduce(x, out=x)
    assert x[0] == comm.size
    assert comm.last_route == SHARED


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


def test_shared_in_a_child() -> None:
    """It reads and writes the arrays of all ranks, as its parent does."""
    with mpicoll.Communicator() as comm:
        arrays = comm.shared(LONG)
        comm.barrier()
        child = os.fork()
        if child == 0:
            for each in arrays:
                each[comm.rank] = 7
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        comm.barrier()
        assert all((each[: comm.size] == 7).all() for each in arrays)


@pytest.mark.slow
def test_shared_is_given_back() -> None:
    def mapped() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count("/memfd:mpicoll-")

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


def test_shared_of_different_shapes() -> None:
    with mpicoll.Communicator() as comm:
        other = int(comm.rank == 0)
        with pytest.raises(ArgumentError, match=rf"expected those of rank {other}, \({2 + other},\) of float64"):
            comm.shared(2 + min(comm.rank, 1))
        assert len(comm.shared(3)) == comm.size


def test_shared_where_ranks_cannot() -> None:
    with mpicoll.Communicator() as comm, pytest.MonkeyPatch.context() as patch:
        if comm.rank == 0:
            patch.setenv("MPICOLL_SHARED_MEMORY", "0")
        with pytest.raises(StateError, match="shared: the ranks cannot share 24 bytes each"):
            comm.shared(3)


@pytest.mark.parametrize("given", [-1, "three", (2, -5), 1.5])
def test_shared_of_no_shape(comm: mpicoll.Communicator, given: Any) -> None:
    with pytest.raises(ArgumentError, match="shared: shape: expected an int of 0 or more"):
        comm.shared(given)
    with pytest.raises(ArgumentError, match=r"shared: shape: expected that of an array of NumPy's; given .*found 70"):
        comm.shared((1,) * 70)
    nonsense: list[Any] = [object, "S", []]
    for dtype in nonsense:
        with pytest.raises(DtypeError, match="shared: dtype: expected numbers"):
            comm.shared(3, dtype)
