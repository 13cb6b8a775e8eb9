"""check="full": ranks that make different calls, or do not come, get one error on every rank, before data moves."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.errors import ArgumentError, MismatchError, StateError, TimeoutError

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.processes]
X = np.arange(6.0)
LONG = np.zeros(1 << 16)


@pytest.fixture
def comm() -> Iterator[mpicoll.Communicator]:
    made = mpicoll.Communicator(check="full", timeout=60)
    yield made
    if not made.closed:
        made.free()
    MPI.COMM_WORLD.Barrier()


Call = Callable[[mpicoll.Communicator], Any]
# What all ranks but the last call, what the last one calls, and words of both in the report.
MISTAKES: dict[str, tuple[Call, Call, str, str]] = {
    "op": (lambda c: c.allreduce(X), lambda c: c.allreduce(X, op="max"), "sum of 6", "max of 6"),
    "dtype": (lambda c: c.allreduce(X), lambda c: c.allreduce(X.astype(np.int64)), "6 float64", "6 int64"),
    "count": (lambda c: c.allreduce(X), lambda c: c.allreduce(X[1:]), "of 6", "of 5"),
    "short and long": (lambda c: c.allreduce(LONG), lambda c: c.allreduce(LONG[:9]), "of 65536", "of 9"),
    "root": (lambda c: c.bcast(X.copy()), lambda c: c.bcast(X.copy(), root=1), "root 0", "root 1"),
    "collective": (lambda c: c.allreduce(X), lambda c: c.barrier(), "allreduce sum", "barrier"),
    "algorithm": (
        lambda c: c.allreduce(X, algorithm="ring"),
        lambda c: c.allreduce(X, algorithm="recursive_doubling"),
        "algorithm ring",
        "algorithm recursive_doubling",
    ),
    "counts": (
        lambda c: c.allgatherv(X[: c.rank], [*range(c.size)]),
        lambda c: c.allgatherv(X[:1], [1] * c.size),
        r"counts \[0, 1",
        r"counts \[1, 1",
    ),
    "reduction": (lambda c: c.reduce(X), lambda c: c.reduce(X, op="prod"), "reduce sum", "reduce prod"),
    "object": (lambda c: c.allgather_object(1), lambda c: c.allreduce(X), "allgather_object", "allreduce sum"),
    "object's root": (lambda c: c.bcast_object(1), lambda c: c.bcast_object(1, 1), "root 0", "root 1"),
    "split": (lambda c: c.split(0), lambda c: c.barrier(), "split", "barrier"),
    "not blocking": (lambda c: c.iallreduce(X).wait(), lambda c: c.ibarrier().wait(), "allreduce sum", "barrier"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_rank_is_told_who_called_what(comm: mpicoll.Communicator, mistake: str) -> None:
    usual, other, words, others = MISTAKES[mistake]
    last = comm.size - 1
    for x in (X, X):
        assert comm.allreduce(x)[1] == comm.size
    with pytest.raises(MismatchError) as caught:
        (other if comm.rank == last else usual)(comm)
    table = str(caught.value).splitlines()[1:]
    assert len(table) == 2
    ranks = "rank 0" if last == 1 else f"ranks 0-{last - 1}"
    assert re.fullmatch(rf"  {ranks}: .*{words}.*", table[0])
    assert re.fullmatch(rf"  rank {last}: .*{others}.*", table[1])
    with pytest.raises(StateError, match="cannot be used any more"):
        comm.barrier()


def test_a_part_of_the_ranks_is_named_as_in_the_job(comm: mpicoll.Communicator) -> None:
    """The exception numbers the ranks as their communicator does, and says which ranks of the job these are."""
    part = comm.split(0, key=-comm.rank)
    with pytest.raises(MismatchError) as caught:
        part.allreduce(X if part.rank else X[:1])
    last = comm.size - 1
    assert f"  rank 0 (the job's rank {last}): allreduce sum of 1 float64" in str(caught.value).splitlines()
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    comm.timeout = 1
    late = comm.split(0, key=-comm.rank)
    MPI.COMM_WORLD.Barrier()  # so that those that come are there in time
    if late.rank:
        with pytest.raises(TimeoutError, match=rf"rank 0 \(the job's rank {last}\) did not come"):
            late.barrier()
    MPI.COMM_WORLD.Barrier()


def test_right_calls_are_right(comm: mpicoll.Communicator) -> None:
    """Repeated calls, arrays and objects, and communicators made of this one."""
    x = X.copy()
    for _ in range(3):
        comm.allreduce(x, out=x)
    assert np.array_equal(x, X * comm.size**3)
    assert comm.allgather_object(comm.rank) == [*range(comm.size)]
    part = comm.split(comm.rank % 2)
    assert part.allreduce(np.ones(1))[0] == part.size
    if part.size > 1:
        with pytest.raises(MismatchError):
            part.bcast(X.copy(), root=part.rank)
    sent = [np.full(2, comm.rank)] * comm.size
    assert comm.alltoall(np.array(sent))[:, 0].tolist() == [*range(comm.size)]
    ones = [1] * comm.size
    assert comm.alltoallv(np.full(comm.size, comm.rank), ones, ones).tolist() == [*range(comm.size)]


@pytest.mark.slow
def test_a_rank_that_comes_too_late() -> None:
    """The others name it; it is told that they have given up, and goes on to no call that nobody answers."""
    comm = mpicoll.Communicator(check="full", timeout=1)
    last = comm.size - 1
    MPI.COMM_WORLD.Barrier()  # so that those that come are there in time
    if comm.rank == last:
        MPI.COMM_WORLD.Barrier()
    with pytest.raises(TimeoutError) as caught:
        comm.allreduce(X)
    if comm.rank != last:
        MPI.COMM_WORLD.Barrier()
    said = f"rank {last} did not come within 1 s, to allreduce sum of 6 float64"
    late = "this rank came when others had given up, to allreduce sum of 6 float64"
    assert str(caught.value) == "allreduce: " + (late if comm.rank == last else said)
    with pytest.raises(StateError, match="cannot be used any more"):
        comm.barrier()
    MPI.COMM_WORLD.Barrier()


RECEIVES: dict[str, Callable[[mpicoll.Communicator, Any, int], Any]] = {
    "recv": lambda comm, room, source: comm.recv(room, source, tag=7),
    "irecv": lambda comm, room, source: comm.irecv(room, source, tag=7).wait(),
    "recv_object": lambda comm, room, source: comm.recv_object(source, tag=7),
}


def test_rows_that_do_not_fit(comm: mpicoll.Communicator) -> None:
    """The last rank expects a row too many of rank 0."""
    size, last = comm.size, comm.size - 1
    rows, expected = [2] * size, [2 + (comm.rank == last), *[2] * last]
    with pytest.raises(MismatchError) as caught:
        comm.alltoallv(np.zeros((2 * size, 3)), rows, expected)
    assert str(caught.value).splitlines()[1:] == [
        f"  rank 0: alltoallv with 6 elements for rank {last}",
        f"  rank {last}: alltoallv that expects 9 elements from rank 0",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECEIVES)
def test_a_receive_that_nobody_sends_to(kind: str) -> None:
    comm = mpicoll.Communicator(check="full", timeout=0.5)
    room, after = np.zeros(3), (comm.rank + 1) % comm.size
    words = f"{kind}: no message came from rank {after} (tag 7) within 0.5 s"
    with pytest.raises(TimeoutError) as caught:
        RECEIVES[kind](comm, room, after)
    assert str(caught.value) == words
    # Nothing that comes later is written to the array, and no later call can take it for something else.
    MPI.COMM_WORLD.Barrier()
    room[:] = -1
    with pytest.raises(StateError, match=f"cannot be used any more: .*no message came from rank {after}|ended midway"):
        comm.recv(room, after, tag=7)
    assert (room == -1).all()
    MPI.COMM_WORLD.Barrier()


@pytest.mark.slow
def test_a_long_send_that_nobody_receives() -> None:
    arrays, objects = (mpicoll.Communicator(check="full", timeout=0.5) for _ in range(2))
    if arrays.rank == 0:
        with pytest.raises(TimeoutError, match=r"send: no message was taken by rank 1 \(tag 0\) within 0.5 s"):
            arrays.send(np.zeros(1 << 22), 1)
        with pytest.raises(TimeoutError, match=r"send_object: no message was taken by rank 1 \(tag 1\) within 0.5 s"):
            objects.send_object(b"x" * (1 << 24), 1, tag=1)
        for comm in (arrays, objects):
            with pytest.raises(StateError, match="cannot be used any more"):
                comm.barrier()
    MPI.COMM_WORLD.Barrier()
    if arrays.rank == 1:  # the messages are still there
        arrays.timeout = objects.timeout = 60
        assert len(arrays.recv(np.ones(1 << 22), 0)) == 1 << 22
        assert len(objects.recv_object(0, tag=1)) == 1 << 24
    MPI.COMM_WORLD.Barrier()


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["alltoall_object", "split", "bcast_object"])
def test_a_wrong_argument_on_one_rank(wrong: str) -> None:
    """It is refused before that rank agrees, so that the others do not wait in the call for ever."""
    comm = mpicoll.Communicator(check="full", timeout=1)
    calls: dict[str, tuple[Call, Call]] = {
        "alltoall_object": (lambda c: c.alltoall_object([1] * c.size), lambda c: c.alltoall_object([1])),
        "split": (lambda c: c.split(0), lambda c: c.split(-1)),
        "bcast_object": (lambda c: c.bcast_object(None), lambda c: c.bcast_object(lambda: 1)),
    }
    MPI.COMM_WORLD.Barrier()  # so that those that come are there in time
    if comm.rank == 0:
        with pytest.raises(ArgumentError):
            calls[wrong][1](comm)
    else:
        with pytest.raises(TimeoutError, match=f"{wrong}: rank 0 did not come within 1 s"):
            calls[wrong][0](comm)
    MPI.COMM_WORLD.Barrier()
