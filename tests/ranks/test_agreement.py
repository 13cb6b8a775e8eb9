"""check="full": ranks that make different calls, or do not come, get one error on every rank, before data moves."""

from __future__ import annotations

import itertools
import os
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicoll
from mpicoll.algorithms.steps import Nodes
from mpicoll.calls.call import checked
from mpicoll.calls.choose import choose
from mpicoll.calls.settings import Settings
from mpicoll.errors import ArgumentError, MessageError, MismatchError, StateError, TimeoutError
from mpicoll.fabrics.mpi import MPIFabric
from mpicoll.launch import cores
from tests.sharing import SHARED

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
    assert part is not None
    with pytest.raises(MismatchError) as caught:
        part.allreduce(X if part.rank else X[:1])
    last = comm.size - 1
    assert f"  rank 0 (the job's rank {last}): allreduce sum of 1 float64" in str(caught.value).splitlines()
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    comm.timeout = 1
    late = comm.split(0, key=-comm.rank)
    assert late is not None
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
    assert part is not None
    assert part.allreduce(np.ones(1))[0] == part.size
    with pytest.raises(MismatchError) if part.size > 1 else pytest.raises(AssertionError):
        part.bcast(X.copy(), root=part.rank)
        assert part.size > 1
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


def test_the_environment_of_rank_0_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    if MPI.COMM_WORLD.rank == 0:
        monkeypatch.setenv("MPICOLL_CHECK", "full")
        monkeypatch.setenv("MPICOLL_TIMEOUT", "7.5")
    with mpicoll.Communicator() as comm:
        assert (comm._engine.info.settings.check, comm._engine.info.settings.timeout) == ("full", 7.5)
        with pytest.raises(MismatchError):
            comm.bcast(X.copy(), root=min(comm.rank, 1))
        raise_nothing = comm.closed
    assert "bcast was not the same on all ranks" in raise_nothing
    monkeypatch.delenv("MPICOLL_CHECK", raising=False)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    with mpicoll.Communicator() as comm:
        assert comm._engine.info.settings.check == "full"


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


# -- what rank 0 tells the ranks of a communicator, so that all choose the same algorithm --


def chosen(operation: str, comm: mpicoll.Communicator) -> str:
    """What would carry out a short sum."""
    call = checked(operation, comm.rank, comm.size, np.ones(2), np.ones(2), "sum", 0)
    return choose(call, None, comm._engine.info).name


def test_all_ranks_choose_what_rank_0_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their environments and cores may differ. A communicator's choice never changes."""
    with mpicoll.Communicator() as plain:
        rank, size = plain.rank, plain.size
        otherwise = chosen("reduce", plain)
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:ring" if rank == 0 else "allreduce:native,reduce:binomial_tree")
    with mpicoll.Communicator() as comm:
        monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:swing")
        part, node = comm.split(0, key=-comm.rank), comm.node
        for each in (comm, part, node, comm.subset(range(size))):
            assert each is not None
            assert chosen("allreduce", each) == "ring"
            assert chosen("reduce", each) == otherwise
            x = np.full(8, 1.0 + each.rank)
            assert each.allreduce(x, out=x)[0] == size * (size + 1) / 2
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:rang" if rank == 0 else "")
    with mpicoll.Communicator() as comm, pytest.raises(ArgumentError, match=r"MPICOLL_ALGORITHM: .*given 'rang'"):
        comm.allreduce(np.ones(2))


@pytest.mark.parametrize(
    ("allowed", "launched", "expected"),
    [
        (lambda rank, size: range(size), None, False),
        (lambda rank, size: range(size - 1), None, True),
        (lambda rank, size: [0], None, True),
        (lambda rank, size: [rank], 64, False),  # bound, each to its own
        (lambda rank, size: range(size), 64, True),  # beside others
        (lambda rank, size: [rank], 65, True),
    ],
)
def test_ranks_that_take_turns_on_cores(
    monkeypatch: pytest.MonkeyPatch, allowed: Any, launched: int | None, expected: bool
) -> None:
    world = MPI.COMM_WORLD
    monkeypatch.setattr(cores, "cpus", lambda: set(allowed(world.rank, world.size)))
    monkeypatch.setattr(cores, "ranks_here", lambda: launched or 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert cores.oversubscribed(world) == expected


def test_a_node_of_several_has_the_rules_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was preferred when the whole was made is kept. The ranks of the node have the kernel."""
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:ring")
    with monkeypatch.context() as several:
        several.setattr(MPIFabric, "_found_nodes", lambda fabric: Nodes(tuple(range(fabric.size))))
        comm = mpicoll.Communicator()
        part = comm.split(0)
    monkeypatch.setenv("MPICOLL_ALGORITHM", "allreduce:native")
    assert part is not None
    for each in (comm, part, comm.node):
        assert each._engine.info.settings == Settings("allreduce:ring")
    assert not comm._engine.info.kernel
    assert comm.node._engine.info.kernel == SHARED
    part.free()
    comm.free()


# -- messages of another dtype than the receive's, or of an object, are an error and not wrong data --


ARRAYS: dict[str, Any] = {
    "float32": lambda: np.arange(6, dtype=np.float32),
    "int32": lambda: np.arange(6, dtype=np.int32),
    "bfloat16": lambda: torch.arange(12).bfloat16(),
    "float16": lambda: torch.arange(12).half(),
    "complex64": lambda: np.arange(3, dtype=np.complex64),
}
"""Arrays of as many bytes."""


@pytest.mark.parametrize("operation", ["recv", "irecv"])
@pytest.mark.parametrize(("sent", "taken"), [*itertools.pairwise([*ARRAYS, "float32"])])
def test_another_dtype(comm: mpicoll.Communicator, operation: str, sent: str, taken: str) -> None:
    """Rank 1 receives an array of another dtype than rank 0 sends, and then once more, of the same."""
    if comm.rank == 0:
        comm.send(ARRAYS[sent](), 1, tag=7)
        comm.send(ARRAYS[sent](), 1, tag=8)
    elif comm.rank == 1:
        y, before = ARRAYS[taken](), ARRAYS[taken]()
        says = f"^{operation}: expected {taken} from rank 0 .tag 7.; it has sent {sent}, which waits to be received$"
        request = comm.irecv(y, 0, tag=7) if operation == "irecv" else None
        with pytest.raises(MessageError, match=says):
            comm.recv(y, tag=7) if request is None else request.wait()
        assert bool((y == before).all())
        z = ARRAYS[sent]() * 0
        found = comm.probe(0, tag=7)
        assert (found.source, found.tag, found.nbytes) == (0, 7, 24)
        comm.recv(z, 0, tag=7)
        assert bool((z == ARRAYS[sent]()).all())
        request = comm.irecv(z, tag=8)
        request.wait()
        assert (request.source, request.tag) == (0, 8)
    comm.barrier()


def test_repeated_messages(comm: mpicoll.Communicator) -> None:
    """Each brings its own values, whatever was sent before from this array."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, y = np.zeros(3), np.zeros(3)
    for i in range(4):
        x[:] = 10 * i + comm.rank
        for receive in (
            lambda: (comm.isend(x, right), comm.recv(y, left)),
            lambda: (comm.irecv(y, left), comm.send(x, right)),
            lambda: (comm.sendrecv(x, right, y, left),),
        ):
            y[:] = -1
            for each in receive():
                getattr(each, "wait", int)()
            assert y.tolist() == [10 * i + left] * 3
        comm.send(x, MPI.PROC_NULL)
        assert comm.recv(y, MPI.PROC_NULL).tolist() == [10 * i + left] * 3
        if comm.rank == 0:
            comm.send_object(i, right)
        assert comm.recv_object(left) == i
        if comm.rank:
            comm.send_object(i, right)


def test_any_tag(comm: mpicoll.Communicator) -> None:
    """MPI hands such a message over before anybody can see what it is."""
    if comm.rank == 0:
        comm.send(ARRAYS["int32"](), 1, tag=3)
        comm.send(ARRAYS["int32"](), 1, tag=4)
    elif comm.rank == 1:
        with pytest.raises(MessageError, match=r"^recv: expected float32 from rank 0 \(tag 3\); int32 arrived$"):
            comm.recv(ARRAYS["float32"](), 0, tag=None)
        x = ARRAYS["int32"]() * 0
        request = comm.irecv(x, tag=None)
        request.wait()
        assert (request.source, request.tag) == (0, 4)
        assert x.tolist() == [*range(6)]
    comm.barrier()


def test_objects_and_arrays(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        comm.send_object("a", 1, tag=1)
    elif comm.rank == 1:
        x = ARRAYS["int32"]() * 0
        assert comm.probe(0, 1).source == 0
        with pytest.raises(MessageError, match=r"^recv: expected int32 from rank 0 \(tag 1\); it has sent object"):
            comm.recv(x, 0, tag=1)
        assert comm.recv_object(tag=1) == "a"
    comm.barrier()
    if comm.rank == 0:
        comm.send(ARRAYS["int32"](), 1, tag=1)
    elif comm.rank == 1:
        with pytest.raises(
            MessageError, match=r"^recv_object: expected object from rank 0 \(tag 1\); it has sent int32"
        ):
            comm.recv_object(0, tag=1)
        comm.recv(x, 0, tag=1)
    comm.barrier()


def test_an_object_and_then_an_array(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both come when the rank that receives has seen no object, and is about to look for other kinds."""
    if comm.rank == 0:
        comm._engine.fabric.bcast(None, 1)
        comm.send_object("a", 1, tag=1)
        comm.send(ARRAYS["int32"](), 1, tag=1)
        comm._engine.fabric.bcast(None, 0)
    else:
        fabric = comm._engine.fabric
        probe = fabric.probe
        are_there: list[Any] = []

        def probe_late(source: int | None, tag: int | None) -> Any:
            if not are_there:
                are_there.extend([fabric.bcast(None, 1), fabric.bcast(None, 0)])
            return probe(source, tag)

        monkeypatch.setattr(fabric, "probe", probe_late)
        if comm.rank == 1:
            assert comm.recv_object(0, tag=1) == "a"
            assert comm.recv(ARRAYS["int32"]() * 0, 0, tag=1)[1] == 1
        else:
            probe_late(None, 1)
    comm.barrier()


def test_a_probe_finds_what_came_first(comm: mpicoll.Communicator) -> None:
    if comm.rank == 0:
        comm.send(np.zeros(5, np.float32), 1, tag=2)
        comm.send(np.zeros(9, np.int32), 1, tag=2)
        comm.send(np.zeros(2), 1, tag=3)
    comm.barrier()
    if comm.rank == 1:
        assert comm.probe(0, tag=3).nbytes == 16
        assert comm.probe(0, tag=2).nbytes == 20
        comm.recv(np.zeros(5, np.float32), 0, tag=2)
        assert comm.probe(tag=None).nbytes == 36
        comm.recv(np.zeros(9, np.int32), 0, tag=2)
        comm.recv(np.zeros(2), 0, tag=3)
    comm.barrier()


def test_tags(comm: mpicoll.Communicator) -> None:
    most = mpicoll.Communicator(check="watch")._engine.most_tag
    with pytest.raises(ArgumentError, match="isend: tag: expected an int from 0 to"):
        comm.isend(np.ones(1), 0, tag=most)
    tag, x, y = comm._engine.most_tag, np.ones(1), np.zeros(1)
    comm.sendrecv(x, comm.rank, y, comm.rank, tag, tag)
    assert y[0] == 1
