"""Objects of every length around what a slot holds, and what may happen while they are on their way."""

from __future__ import annotations

import pickle
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpicoll
from mpicoll.calls import choose
from mpicoll.errors import MessageError
from mpicoll.fabrics import mpi_objects
from tests.ranks.children import ended_midway

pytestmark = pytest.mark.sizes(1, 2)

ROOM = mpi_objects.ROOM
LENGTHS = [*range(ROOM - 3, ROOM + 4), mpi_objects.SLOT, 2 * mpi_objects.SLOT, 70_000]


@pytest.fixture(scope="module")
def comm() -> mpicoll.Communicator:
    return mpicoll.Communicator()


def of_length(n: int, mark: int) -> bytes:
    """An object that is ``n`` bytes long when it is pickled."""
    for short in range(n - 40, n):
        obj = bytes([mark]) * short
        if len(MPI.pickle.dumps(obj)) == n:
            return obj
    raise AssertionError(f"no object is pickled as {n} bytes")


@pytest.mark.parametrize("limit", [choose.MAX_COUNT, 400])
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch, length: int, limit: int) -> None:
    """All ranks have long objects, or some have, or one."""
    monkeypatch.setattr(choose, "MAX_COUNT", limit)
    rank, size = comm.rank, comm.size
    for long in [{*range(size)}, *({r} for r in range(size)), {r for r in range(size) if r % 2 == 0}]:
        one_each = [of_length(length, r + 1) if r in long else f"{r}".encode() for r in range(size)]
        assert comm.allgather_object(one_each[rank]) == one_each
        assert comm.allreduce_object([one_each[rank]]) == one_each
        # Rank r has the longer ones for the ranks in long, each with its own mark.
        grid = [[one_each[to] + bytes([r]) for to in range(size)] for r in range(size)]
        assert comm.alltoall_object(grid[rank]) == [row[rank] for row in grid]
        for root in range(size):
            assert comm.bcast_object(one_each[root] if rank == root else None, root) == one_each[root]
            assert comm.gather_object(one_each[rank], root) == (one_each if rank == root else None)
            assert comm.scatter_object(one_each if rank == root else None, root) == one_each[rank]
        after, before = (rank + 1) % size, (rank - 1) % size
        if size > 1:
            for source, tag in product((before, None), (5, None)):
                if rank == 0:
                    comm.send_object(one_each[rank], after, tag=5)
                assert comm.recv_object(source, tag) == one_each[before]
                if rank > 0:
                    comm.send_object(one_each[rank], after, tag=5)
    assert comm.allgather_object(None) == [None] * size


class Calls:
    """An object that makes a collective when it is pickled, and when it is unpickled."""

    comm: mpicoll.Communicator

    def __init__(self, rank: int, length: int) -> None:
        self.rank, self.length = rank, length

    def __reduce__(self) -> tuple[Any, ...]:
        assert self.comm.allgather_object("before") == ["before"] * self.comm.size
        return came, (self.rank, b"x" * self.length)


def came(rank: int, content: bytes) -> tuple[int, int]:
    assert Calls.comm.bcast_object("y" * 300) == "y" * 300
    return rank, len(content)


@pytest.mark.parametrize("length", [1, 1000])
def test_an_object_that_makes_calls(comm: mpicoll.Communicator, length: int) -> None:
    Calls.comm = comm
    every: list[Any] = [(r, length) for r in range(comm.size)]
    assert comm.allgather_object(Calls(comm.rank, length)) == every
    assert comm.alltoall_object([Calls(comm.rank, length) for _ in range(comm.size)]) == every
    comm.barrier()


def test_a_call_between_two_of_another_communicator(
    comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a signal's handler may make one when MPI has filled the slots and nobody has read them."""
    with mpicoll.Communicator() as other:
        opened = mpi_objects.MPIObjects._opened
        within: list[bool] = []

        def interrupted(*arguments: Any) -> Any:
            if not within:
                within.append(True)
                assert other.allgather_object(-other.rank) == [-r for r in range(other.size)]
            return opened(*arguments)

        monkeypatch.setattr(mpi_objects.MPIObjects, "_opened", interrupted)
        assert comm.allgather_object(comm.rank) == [*range(comm.size)]
        assert bool(within) == (comm.size > 1)


def test_threads_with_communicators_of_their_own(comm: mpicoll.Communicator) -> None:
    if not comm._engine.fabric.any_thread:
        pytest.skip("one thread may call MPI")
    comms = [mpicoll.Communicator() for _ in range(2)]

    def calls(mine: mpicoll.Communicator, mark: int) -> None:
        for turn in range(100):
            expected = [(mark, turn, r) for r in range(mine.size)]
            assert mine.allgather_object((mark, turn, mine.rank)) == expected
            assert mine.alltoall_object([(mark, turn, mine.rank)] * mine.size) == expected

    with ThreadPoolExecutor() as threads:
        list(threads.map(calls, comms, (1, 2)))
    for each in comms:
        each.free()


@pytest.mark.slow
@pytest.mark.mpi(min_size=2)
def test_a_handler_that_raises_while_an_object_is_received(comm: mpicoll.Communicator, tmp_path: Path) -> None:
    """Where MPI has found the object, it is lost, as any result of a call that raises. Its sender goes on."""
    by_library = comm._engine.fabric.messages.by_library
    has_raised = Path(comm.bcast_object(str(tmp_path / "has_raised")))
    if comm.rank == 0:
        MPI.COMM_WORLD.recv(source=1)
        if by_library:
            time.sleep(1)  # in which the signal comes
        while not (by_library or has_raised.exists()):
            time.sleep(0.01)
        comm.send_object(b"x" * (1 << 22), 1)
        comm.send_object("next", 1)
    elif comm.rank == 1:
        with ended_midway():
            MPI.COMM_WORLD.send(None, 0)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            comm.recv_object(0)  # the handler runs as soon as MPI has found the message, and at once in the kernel
        has_raised.touch()
        if not by_library:
            assert comm.recv_object(0) == b"x" * (1 << 22)
        assert comm.recv_object(0) == "next"
    MPI.COMM_WORLD.Barrier()


@pytest.mark.mpi(min_size=2)
def test_what_is_no_object() -> None:
    """An array of just a slot's length, where others expect objects."""
    comm = mpicoll.Communicator(check="off")
    if comm.rank == 0:
        comm.bcast(np.zeros(mpi_objects.SLOT, np.uint8), 0, algorithm="native")
    else:
        with pytest.raises(MessageError, match="bcast_object: expected an object, and something else came"):
            comm.bcast_object(None, 0)
    MPI.COMM_WORLD.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.processes
@pytest.mark.parametrize("given", [np.zeros(3), np.empty(0), np.full(3, 141, np.uint8)])
def test_an_array_where_an_object_is_expected(given: NDArray[Any]) -> None:
    comm = mpicoll.Communicator()
    if comm.rank == 0:
        comm.send(given, 1)
    elif comm.rank == 1:
        with pytest.raises(MessageError, match=r"^recv_object: what came \(tag 0\) is no object: was an array sent"):
            comm.recv_object(0)
    comm.barrier()


TEXTS = "", "a\0\u00e4\U0001f600", "\ud800", b"", bytes(range(256)), bytes(70_000), bytearray(b"x"), (1, "a")
NUMBERS = 0, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 0.0, -0.0, 1e-300, float("-inf"), float("nan"), None, True, False


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("tag", "obj"), [*enumerate([*TEXTS, *NUMBERS], 100)], ids=lambda obj: ascii(obj)[:20])
def test_what_the_kernel_pickles_itself(comm: mpicoll.Communicator, tag: int, obj: object) -> None:
    """It sends what is sent again. Python receives what was not awaited before in this way, and later the kernel. What
    comes has the type and the bits of what was sent."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for source in (left, left, None, None, left):
        if comm.rank == 0:
            comm.send_object(obj, right, tag)
        came = comm.recv_object(source, tag)
        if comm.rank:
            comm.send_object(came, right, tag)
        assert (type(came), repr(came)) == (type(obj), repr(obj))


def test_another_way_to_pickle(comm: mpicoll.Communicator) -> None:
    """A program may tell mpi4py to pickle in another way."""
    try:
        MPI.pickle.__init__(lambda obj: obj.encode(), lambda data: bytes(data).decode())  # type: ignore[misc]
        for text in ("", "short", "long" * 1000):
            assert comm.allgather_object(text) == [text] * comm.size
            assert comm.bcast_object(text) == text
            for source in (comm.rank, None):  # the kernel sends the second one, and Python receives it
                comm.send_object(text[:9], comm.rank, 21 + len(text))
                assert comm.recv_object(source, 21 + len(text)) == text[:9]
    finally:
        MPI.pickle.__init__(pickle.dumps, pickle.loads)  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.mpi(min_size=2)
def test_more_than_2_to_the_31_bytes(comm: mpicoll.Communicator) -> None:
    if comm.size > 2:
        pytest.skip("the memory is there for two ranks")
    n, fabric = 2**31 + 11, comm._engine.fabric
    data = bytes(n - 1) + b"\1" if comm.rank == 0 else None
    moved = fabric.objects.bcast(data, 0)
    assert (len(moved), moved[0], moved[n - 1]) == (n, 0, 1)
    del moved
    if data is not None:
        fabric.messages.send_object(data, 1, 0, None)
    else:
        taken = fabric.messages.recv_object(None, 0, None)
        assert (len(taken), taken[0], taken[n - 1]) == (n, 0, 1)
