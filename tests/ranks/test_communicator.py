"""What random draws do not reach: messages, objects, parts, kinds of arrays."""

from __future__ import annotations

import array
import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicoll
from mpicoll.errors import ArgumentError, MessageError
from tests.arrays import Exporter

pytestmark = pytest.mark.sizes(1, 2, 4)


# -- the array of a call --


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(b"\1\2\3\4"),
        lambda: array.array("i", [1, 2, 3]),
        lambda: memoryview(array.array("d", [1, 2, 3])),
        lambda: Exporter(np.arange(1.0, 4.0)),
        lambda: Exporter(torch.arange(1, 4)),
        lambda: torch.nn.Parameter(torch.arange(1.0, 4.0)),
    ],
)
def test_whatever_exports_memory(comm: mpicoll.Communicator, make: Any) -> None:
    x = make()
    assert comm.allreduce(x, out=x) is x
    inside = x.x if isinstance(x, Exporter) else x.detach() if isinstance(x, torch.Tensor) else x
    assert [float(v) for v in inside] == [float(comm.size * (i + 1)) for i in range(len(inside))]


@pytest.mark.parametrize(
    "x",
    [
        np.array([("a", 1), ("bc", 2)], dtype=[("name", "U3"), ("n", "i2")]),
        np.array(["2026-01-01", "2027-01-01"], dtype="datetime64[D]"),
        np.arange(3, dtype=">i4"),
        np.arange(3, dtype=np.longdouble),
        torch.arange(4.0).to(torch.float8_e4m3fn),
    ],
    ids=lambda x: str(x.dtype),
)
def test_what_cannot_be_reduced_can_be_moved(comm: mpicoll.Communicator, x: Any) -> None:
    mine = x if comm.rank == 0 else (torch.zeros_like(x) if isinstance(x, torch.Tensor) else np.zeros_like(x))
    for by, gathered_by in ((None, None), ("binomial_tree", "ring")):
        comm.bcast(mine, algorithm=by)
        everyone = comm.allgather(mine, algorithm=gathered_by)
        for r in range(comm.size):
            same = everyone[r] == x if not isinstance(x, torch.Tensor) else everyone[r].float() == x.float()
            assert same.all()


def test_a_new_array_is_of_the_kind_and_shape_of_the_input(comm: mpicoll.Communicator) -> None:
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    y = comm.allgather(x)
    assert isinstance(y, torch.Tensor)
    assert (y.dtype, y.shape) == (torch.bfloat16, (comm.size, 2, 3))
    z = comm.reduce_scatter(np.ones((comm.size, 2, 3), np.int32))
    assert (z.dtype, z.shape) == (np.dtype(np.int32), (2, 3))
    assert (z == comm.size).all()
    assert list(comm.allreduce(b"\1\1\1")) == [comm.size] * 3


def test_a_plan_serves_the_address_not_the_object(comm: mpicoll.Communicator) -> None:
    for n in (3, 5, 3, 8):  # freed memory is handed out again, with other sizes and dtypes
        for dtype in ("int32", "float32", "int64"):
            for _ in range(3):
                x = np.full(n, comm.rank + 1, dtype)
                assert (comm.allreduce(x, out=x) == comm.size * (comm.size + 1) // 2).all()
    x = np.ones(4)
    comm.allreduce(x, out=x)
    x.resize(1000, refcheck=False)
    x[:] = 1
    assert (comm.allreduce(x, out=x) == comm.size).all()


@pytest.mark.slow
def test_plans_hold_no_arrays() -> None:
    mpis = MPI.COMM_WORLD.Create_cart([MPI.COMM_WORLD.size], periods=[True])
    fresh = mpicoll.Communicator(mpis)  # its first long call is yet to come
    for make in (
        lambda: np.ones(10_000), lambda: np.ones((10, 10), np.float16), lambda: torch.ones(10_000),
        lambda: np.ones((100, 2))[:, 0], lambda: torch.ones(100, 2)[:, 0],
    ):  # fmt: skip
        x: Any = make()
        fresh.allreduce(x)
        fresh.allreduce(x, out=x)
        fresh.allgather(x)
        fresh.sendrecv(x, fresh.rank, x, fresh.rank)
        fresh.iallreduce(x, out=x).wait()
        rows = fresh.neighbor_allgather(x)
        fresh.neighbor_alltoall(rows)
        seen = weakref.ref(x), weakref.ref(rows)
        del x, rows
        gc.collect()
        assert [each() for each in seen] == [None, None]
    fresh.free()
    mpis.Free()


# -- messages --


def test_messages_around_a_ring(comm: mpicoll.Communicator) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for n in (0, 1, 100_000):
        for x in (np.full(n, comm.rank), torch.full((n,), comm.rank, dtype=torch.bfloat16)):
            y = comm.sendrecv(x, after, x * 0 - 1, before)
            assert (y == before).all()
            y = x * 0 - 1
            request = comm.irecv(y, before, tag=7)
            comm.send(x, after, tag=7)
            request.wait()
            assert (y == before).all()
            assert request.source == before
            assert request.test()


@pytest.mark.mpi(min_size=2)
def test_a_message_of_another_length_is_an_error(comm: mpicoll.Communicator) -> None:
    """Nothing is written between the elements of an array with gaps."""
    by_library = comm._engine.fabric.messages.by_library  # which reports what is too long in words of its own
    for sent, wanted, row in ((3, 4, 1), (4, 3, 1), (3, 4, 2)):
        arrived = "" if by_library and sent > wanted else f" from rank 0; {sent} arrived"
        y = np.full((wanted, row), 7.0)
        if comm.rank == 0:
            comm.isend(np.ones(sent), 1).wait()
        if comm.rank == 1:
            with pytest.raises(MessageError, match=f"recv: .*{wanted} elements of float64{arrived}"):
                comm.recv(y[:, 0], 0)
            assert (y[:, 1:] == 7).all()
        assert comm.allreduce(np.ones(1))[0] == comm.size


@pytest.mark.mpi(min_size=2)
def test_a_long_message_into_a_short_array_is_an_error(comm: mpicoll.Communicator) -> None:
    """Open MPI may write all of it. Then the error says so, and here there is room for it."""
    room = np.zeros(10_000)
    if comm.rank == 0:
        comm.isend(np.ones(len(room)), 1).wait()
    if comm.rank == 1:
        with pytest.raises(MessageError, match=r"3 elements of float64(: was more sent| from rank 0; 1)") as raised:
            comm.recv(room[:3], 0)
        assert not room[3:].any() or "memory behind the array may be overwritten" in str(raised.value)
    comm.barrier()


# -- objects --


class Refuses:
    """An object that raises when it is pickled, or, after ``travels``, when it is unpickled."""

    def __init__(self, travels: bool) -> None:
        self.travels = travels

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.travels:
            raise ValueError("not this one")
        return refuse, ()


def refuse() -> None:
    raise ValueError("not here")


def test_after_an_object_that_is_refused_all_goes_on(comm: mpicoll.Communicator) -> None:
    with pytest.raises(ArgumentError, match=r"^allgather_object: obj: .*not this one"):
        comm.allgather_object(Refuses(travels=False))
    with pytest.raises(ValueError, match=r"^not here$"):  # every rank gets it, so that they all have made the call
        comm.allgather_object(Refuses(travels=True) if comm.rank == 0 else 1)
    assert not comm._engine.recorder.under_way
    with pytest.raises(ArgumentError, match=r"^send_object: obj: .*not this one"):
        comm.send_object(Refuses(travels=False), 0)
    assert comm.allgather_object(comm.rank) == [*range(comm.size)]
    if comm.rank == 0:  # before anything moves: the others have not been met in a call
        with pytest.raises(ArgumentError, match=r"^bcast_object: obj: .*not this one"):
            comm.bcast_object(Refuses(travels=False))
    assert comm.bcast_object("next" if comm.rank == 0 else None) == "next"
    comm.barrier()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_cannot_be_copied(comm: mpicoll.Communicator, duplicate: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="a Communicator cannot be pickled or copied"):
        duplicate(comm)


def test_reductions_of_objects(comm: mpicoll.Communicator) -> None:
    """By names, by mpi4py's names, and by functions. Lists add up in rank order."""
    rank, size = comm.rank, comm.size
    assert comm.allreduce_object([rank]) == list(range(size))
    for op in ("max", MPI.MAX):
        assert comm.allreduce_object(rank, op) == size - 1
    assert comm.allreduce_object((-rank, rank), MPI.MINLOC) == (1 - size, size - 1)
    assert comm.allreduce_object(str(rank), lambda a, b: f"({a}{b})").count("(") == size - 1


# -- communicators --


def test_parts(comm: mpicoll.Communicator) -> None:
    odd = comm.split(comm.rank % 2)
    assert odd.allreduce_object([comm.rank]) == [r for r in range(comm.size) if r % 2 == comm.rank % 2]
    assert (comm.split(0 if comm.rank == 0 else None) is None) == (comm.rank > 0)
    backwards = comm.subset(range(comm.size - 1, -1, -1))
    assert backwards.rank == comm.size - 1 - comm.rank
    if comm.rank == 0:  # collective among its members alone
        alone = comm.subset([0])
        assert alone.size == 1
    with mpicoll.Communicator() as other:
        assert other.node.size == comm.size  # the tests run on one node


def test_its_messages_are_its_own(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0 and comm.size > 1:
        MPI.COMM_WORLD.send("for the program", 1, 0)
        comm.send(np.array([5]), 1, 0)
    if comm.rank == 1:
        assert comm.recv(np.zeros(1, int), 0, 0)[0] == 5
        assert MPI.COMM_WORLD.recv(source=0, tag=0) == "for the program"


# -- what is dropped, or refused half-way --


@pytest.mark.mpi(min_size=2)
def test_a_message_that_the_program_drops_is_kept_until_it_has_left(comm: mpicoll.Communicator) -> None:
    n = 1200
    x = np.arange(n * n, dtype=float).reshape(n, n)
    if comm.rank == 0:
        comm.isend(x.T, 1)  # strided, so it leaves from a copy that nobody else holds
        for _ in range(20):
            np.full(n * n, -1.0)  # takes freed memory
        comm.barrier()
    else:
        comm.barrier() if comm.rank > 1 else None
    if comm.rank == 1:
        y = np.zeros((n, n))
        request = comm.irecv(y, 0)
        comm.barrier()
        request.wait()
        assert (y == x.T).all()


def test_a_refused_sendrecv_leaves_no_receive_behind(comm: mpicoll.Communicator) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    refused, y = np.zeros(2), np.zeros(2)
    with pytest.raises(mpicoll.errors.ArgumentError, match="tag"):
        comm.sendrecv(np.ones(2), after, refused, before, sendtag=-1)
    request = comm.irecv(y, before)
    comm.send(np.full(2, 7.0), after)
    request.wait()
    assert (y == 7).all()
    assert not refused.any()


def test_a_dropped_communicator_is_not_kept_by_who_watches_it() -> None:
    comm = mpicoll.Communicator()
    part = comm.split(0)
    part.barrier()
    fabric = weakref.ref(part._engine.fabric)
    del part
    gc.collect()
    assert fabric() is None
    comm.barrier()
