"""Collectives of the kernel: every one against the oracle, through the slots, in pieces, with ranks that come late, and
where arrays lie in memory that ranks share."""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mpicoll
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.arrays.dtypes import DTYPES, OPS
from mpicoll.calls import choose
from mpicoll.calls.choose import NATIVE, NODE, SHARED
from mpicoll.errors import ArgumentError, MessageError
from mpicoll.fabrics.routes.node import SLOT
from mpicoll.machine import blocks
from mpicoll.supervise import sites
from tests.devices.checks import check
from tests.ranks.random_calls import UNEVEN, Drawn, called, counts_of
from tests.ranks.test_scheduled import OnHost
from tests.sharing import LONG, NEEDED

pytestmark = [*NEEDED, pytest.mark.sizes(2, 4)]

DRAWS = int(os.environ.get("MPICOLL_DRAWS", "150"))
MOVING = [name for name, table in COLLECTIVES.items() if table.moves]
LENGTHS = 1, 2, 3, 17, 300, 5_000, SLOT // 4 - 1, SLOT // 4, SLOT // 4 + 1, SLOT, SLOT + 3
"""Elements of four bytes: around what a slot has room for, and several pieces of it."""
LONG_ONES = (1 << 17) // 4, 131_079, 100_001
"""The shortest vector has so many bytes that ranks look where their arrays lie."""


def drawn(rng: random.Random, size: int, algorithm: str | None) -> Drawn:
    """Of any length by the kernel, and else so long that ranks look where arrays lie."""
    name = rng.choice(MOVING)
    table, lengths = COLLECTIVES[name], LENGTHS if algorithm else LONG_ONES
    dtype = rng.choice(["float32", "float64", "int32", "uint8", "float16", "complex64", "bool"])
    ops = {"bool": ["lor"], "complex64": ["sum"]}.get(dtype, ["sum", "max", "avg"])
    count = rng.choice(lengths) * 4 // np.dtype(dtype).itemsize
    if table.by_rank and not table.rooted:
        count = count // size + 1
    uneven = name in UNEVEN and rng.random() < 0.5
    counts = counts_of(name, np.random.default_rng(rng.randrange(1 << 32)), size, 2 * count)
    return {
        "name": name, "dtype": dtype, "op": rng.choice(ops), "root": rng.randrange(size),
        "counts": counts if uneven else None, "shape": () if uneven else (count,),
        "kind": "numpy", "memory": rng.choice(["shared"] * 4 + ["mixed", "ordinary"]), "out": True,
        "in place": rng.random() < 0.4, "begins": rng.random() < 0.4, "algorithm": algorithm, "factors": None,
        "turns": 1,
    }  # fmt: skip


@pytest.mark.parametrize("algorithm", [NODE, None])
def test_random_calls(comm: mpicoll.Communicator, algorithm: str | None) -> None:
    """Some arrays lie in shared memory, on some ranks or on all, and some ranks come late."""
    seed = int(os.environ.get("MPICOLL_SEED", "20261128"))
    print(f"MPICOLL_SEED={seed}")
    common, own = random.Random(seed), random.Random(seed + 1 + comm.rank)
    served: dict[str, set[tuple[str, bool]]] = {}
    for i in range(DRAWS):
        d = drawn(common, comm.size, algorithm)
        if own.random() < 0.1:
            time.sleep(own.random() * 0.003)
        called(comm, d, np.random.default_rng([seed, i]), own, f"draw {i}")
        served.setdefault(comm.last_route, set()).add((d["name"], d["counts"] is not None))
        assert d["memory"] != "ordinary" or comm.last_route != SHARED, d
    names = [name for name in MOVING if COLLECTIVES[name].prefix is None]
    able = {(name, uneven) for name in names for uneven in (False, *([True] * (name in UNEVEN)))}
    assert served.keys() == {NODE, SHARED} if algorithm else served[SHARED] == able or DRAWS < 150


@pytest.mark.parametrize("op", OPS)
def test_every_reduction(comm: mpicoll.Communicator, op: str) -> None:
    for name, kind in DTYPES.items():
        if kind.kind in OPS[op][0]:
            on: Any = OnHost("torch" if kind.storage else "numpy")
            for count in (3, SLOT // kind.itemsize + 1):
                check(comm, on, "allreduce", NODE, name, op, (count,), "plain")


class InSharedMemory(OnHost):
    """Arrays that others can open, of dtypes that NumPy lacks, too."""

    def __init__(self, comm: mpicoll.Communicator) -> None:
        self._comm = comm

    def array(self, values: Any, dtype: str) -> Any:
        kind = DTYPES[dtype]
        given = torch.from_numpy(values).to(getattr(torch, dtype)) if kind.storage else values
        memory: Any = self._comm.empty(values.shape, f"int{8 * kind.itemsize}" if kind.storage else dtype)
        made = torch.from_numpy(memory).view(given.dtype) if kind.storage else memory
        made[...] = given
        return made


@pytest.mark.parametrize("op", OPS)
def test_every_reduction_where_arrays_lie(comm: mpicoll.Communicator, op: str) -> None:
    on: Any = InSharedMemory(comm)
    for name, kind in DTYPES.items():
        if kind.kind in OPS[op][0]:
            check(comm, on, "allreduce", None, name, op, ((1 << 17) // kind.itemsize + 3,), "plain")
            assert comm.last_route == SHARED or op == "premul_sum", name


def test_elements_longer_than_a_slot(comm: mpicoll.Communicator) -> None:
    """They are only moved, byte by byte."""
    x = np.full(3, comm.rank, np.dtype([("a", "u1", (SLOT + 5,))]))
    gathered = comm.allgather(x, algorithm=NODE)
    for rank in range(comm.size):
        assert (gathered[rank] == np.full(3, rank, x.dtype)).all()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("operation", ["bcast", "scatter", "reduce", "gather", "scan"])
def test_a_rank_waits_for_those_whose_data_it_gets(comm: mpicoll.Communicator, operation: str) -> None:
    """The others come to the call only when they have heard that it is over on this rank."""
    rank, size = comm.rank, comm.size
    x, told, every = np.full(2, rank + 1.0), np.zeros(1), np.repeat(np.arange(size) + 1.0, 2)
    root = rank == 0
    calls: dict[str, tuple[int, Callable[[], Any], Any]] = {
        "bcast": (0, lambda: comm.bcast(x), 1.0),
        "scatter": (0, lambda: comm.scatter(every if root else None, out=np.zeros(2)), rank + 1.0),
        "scan": (0, lambda: comm.scan(x), (rank + 1) * (rank + 2) / 2),
        "reduce": (size - 1, lambda: comm.reduce(x), size * (size + 1) / 2 if root else None),
        "gather": (size - 1, lambda: comm.gather(x), every.reshape(size, 2) if root else None),
    }
    first, call, expected = calls[operation]
    for _ in range(30):
        if rank == first:
            found = call()
            for other in {*range(size)} - {first}:
                comm.send(told, other)
        else:
            comm.recv(told, first)
            found = call()
        np.testing.assert_array_equal(found, expected)


@pytest.mark.mpi(min_size=2)
def test_roots_that_differ_are_found_at_the_next_call(comm: mpicoll.Communicator) -> None:
    """Each root of a bcast goes on at once. All ranks find it in the next call in which they wait."""
    with mpicoll.Communicator(check="off") as own:
        x = np.ones(2)
        own.bcast(x, root=own.rank)
        with pytest.raises(MessageError, match="another rank makes another call"):
            own.allreduce(x, out=x)


@pytest.mark.parametrize("count", [1, SLOT])
def test_ranks_that_make_different_calls(count: int) -> None:
    """Each one learns it before data moves."""
    for rank_1_makes in ("max", "longer", "bcast"):
        with mpicoll.Communicator(check="off") as comm:
            other = comm.rank == 1
            x = np.full(count + (other and rank_1_makes == "longer"), 1.0 + comm.rank)
            what = "bcast" if other and rank_1_makes == "bcast" else "allreduce"
            given: dict[str, Any] = (
                {"op": "max" if other and rank_1_makes == "max" else "sum"} if what != "bcast" else {}
            )
            with pytest.raises(
                MessageError, match=f"^{what}.*: another rank makes another call, or gives other numbers"
            ):
                getattr(comm, what)(x, **given, algorithm=NODE)
            assert (x == 1.0 + comm.rank).all()


@pytest.mark.parametrize("call", ["barrier", "shared"])
def test_messages_move_while_a_rank_waits(comm: mpicoll.Communicator, call: str) -> None:
    """The sender comes to the call only when the receiver, which is there already, has taken the message."""
    message, x = np.full(1 << 20, comm.rank), comm.zeros(1 << 16)

    def wait() -> None:
        comm.barrier(algorithm=NODE) if call == "barrier" else comm.allreduce(x, out=x)

    if comm.rank == 0:
        taken = np.empty_like(message)
        request = comm.irecv(taken, 1)
        wait()
        request.wait()
        assert (taken == 1).all()
    else:
        if comm.rank == 1:
            comm.send(message, 0)
        wait()
    assert comm.last_route == (NODE if call == "barrier" else SHARED)


@pytest.mark.parametrize("elements", [9, 20_000, 1 << 18])
def test_a_rank_that_is_alone(comm: mpicoll.Communicator, elements: int) -> None:
    """Its short collectives are the kernel's, and so are its messages to itself, of which a long one is copied once."""
    part = comm.split(comm.rank, 0)
    x = np.arange(elements, dtype=np.float32)
    for algorithm in (None, NODE):
        assert (part.allreduce(x, algorithm=algorithm) == x).all()
        assert part.last_route == (NODE if algorithm or x.nbytes <= choose.LONGEST_ALONE else NATIVE)
        assert (part.scan(x, algorithm=algorithm) == x).all()
        assert (part.bcast(x.copy(), algorithm=algorithm) == x).all()
        assert (part.alltoall(x[np.newaxis], algorithm=algorithm) == x).all()
    for sent in (x, np.stack([x, x], axis=1)[:, 0]):
        assert (part.sendrecv(sent, 0, np.empty_like(x), 0) == x).all()
        kept = x.copy()
        part.sendrecv(kept, 0, kept, 0)
        later = [part.isend(sent, 0, tag=1), part.isend(2 * x, 0, tag=2)]
        assert part.probe(tag=2).nbytes == x.nbytes
        second, first = part.recv(np.empty_like(x), tag=2), part.recv(np.empty_like(x), tag=1)
        for request in later:
            request.wait()
        assert (kept == x).all()
        assert (first == x).all()
        assert (second == 2 * x).all()
    part.send_object({"a": elements}, 0)
    assert part.recv_object(0) == {"a": elements}


def test_another_thread_ends_the_wait_of_a_rank_that_is_alone(comm: mpicoll.Communicator) -> None:
    part = comm.split(comm.rank, 0)
    came = threading.Event()
    sender = threading.Thread(target=lambda: came.wait(0.2) or part.send(np.arange(4.0), 0))
    sender.start()
    assert part.recv(np.empty(4), 0).tolist() == [0, 1, 2, 3]
    sender.join()


def test_a_thread_that_has_sent_may_be_gone(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the look that finds no other thread, the message may be here already."""
    part = comm.split(comm.rank, 0)
    sent: list[None] = []

    def nobody_is_left() -> bool:
        if not sent:
            sent.append(None)
            part.send(np.arange(4.0), 0)
        return True

    monkeypatch.setattr(sites, "is_alone", nobody_is_left)
    assert part.recv(np.empty(4), 0).tolist() == [0, 1, 2, 3]
    with pytest.raises(MessageError, match="waits for itself"):
        part.recv(np.empty(4), 0)


def test_a_receive_that_has_failed_takes_nothing(comm: mpicoll.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "is_alone", lambda: True)
    part, late = comm.split(comm.rank, 0), np.zeros(4)
    request = part.irecv(late, 0)
    with pytest.raises(MessageError, match="waits for itself"):
        request.wait()
    part.send(np.arange(4.0), 0)
    assert part.recv(np.empty(4), 0).tolist() == [0, 1, 2, 3]
    assert not late.any()


def test_ranks_that_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPICOLL_SHARED_MEMORY", "0")
    with mpicoll.Communicator() as comm, pytest.raises(ArgumentError, match=r"share no memory, .*given 'node'"):
        comm.allreduce(np.ones(9), algorithm=NODE)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [1, 100_000])
def test_an_alltoallv_whose_counts_differ_on_one_rank_fails_on_all(count: int, shared: bool, begins: bool) -> None:
    comm = mpicoll.Communicator()
    rank, size = comm.rank, comm.size
    new = comm.empty if shared else np.empty
    counts = [count] * size
    expected, said = counts, "another rank makes another call, or gives other numbers"
    if rank == 0:
        expected, said = [*counts[:-1], count + 1], f"expected {count + 1} elements from rank {size - 1}"
    xs, out = new(size * count, np.float64), new(sum(expected), np.float64)
    xs[...], out[...] = rank, -1
    call = (lambda *args: comm.ialltoallv(*args).wait()) if begins else comm.alltoallv
    with pytest.raises(MessageError, match=said):
        call(xs, counts, expected, out)
    assert (out == -1).all(), "nothing has moved"


# -- where arrays lie --


def test_only_a_collective_with_an_algorithm_of_its_own_is_not_made_where_arrays_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MPICOLL_ALGORITHM", "bcast:linear")
    with mpicoll.Communicator() as comm:
        x = comm.zeros(LONG, np.float32)
        comm.allreduce(x, out=x)
        assert comm.last_route == SHARED
        comm.bcast(x)
        assert comm.last_route == "linear"
        comm.allreduce(x, out=x, algorithm="ring")
        assert comm.last_route == "ring"


def test_an_average_where_the_sum_is_too_large(comm: mpicoll.Communicator) -> None:
    x = comm.empty(LONG, np.float16)
    x.fill(60000)
    comm.allreduce(x, "avg", out=x)
    assert comm.last_route == SHARED
    assert (x == 60000).all()


def test_some_ranks_have_ordinary_arrays(comm: mpicoll.Communicator) -> None:
    """In one call, and in the next one none has. Each call is right, and goes where its arrays lie if all can."""
    for odd in range(comm.size):
        for made in (np.empty, comm.empty):
            x = made(LONG) if comm.rank == odd else comm.empty(LONG)
            for _ in range(2):
                x.fill(comm.rank)
                comm.allreduce(x, out=x)
                assert comm.last_route == (NODE if made is np.empty else SHARED)
                assert (x == sum(range(comm.size))).all()


def test_long_moves_of_ordinary_arrays(comm: mpicoll.Communicator) -> None:
    """Up to four ranks read and write each other's memory, if the system lets them, as it does for root."""
    may_reach = sys.platform == "linux" and os.geteuid() == 0 and "MPICOLL_TESTS_ELSEWHERE" not in os.environ
    n, size, rank = choose.LONG_MOVES // 8, comm.size, comm.rank
    counts = [n // size * (r % 3) + 5 for r in range(size)]
    for made, route in ((np.empty, NODE if may_reach and 1 < size <= 4 else NATIVE), (comm.empty, SHARED)) * 2:
        x, all_x, uneven = made(n), made((size, n)), made(sum(counts))
        root = size - 1
        x.fill(rank)
        comm.bcast(x, root=root)
        assert comm.last_route == route
        assert (x == root).all()
        x.fill(rank)
        all_x.fill(-1)
        comm.gather(x, out=all_x if rank == root else None, root=root)
        assert comm.last_route == route
        assert (all_x == (np.arange(size)[:, None] if rank == root else -1)).all()
        comm.allgather(x, out=all_x)
        assert comm.last_route == route
        assert (all_x == np.arange(size)[:, None]).all()
        comm.scatter(all_x if rank == 0 else None, out=x)
        assert comm.last_route == route
        assert (x == rank).all()
        given = np.add.outer(np.arange(size) + 10.0 * rank, np.zeros(n))
        all_x[:] = given
        taken = made((size, n))
        comm.alltoall(all_x, out=taken)
        assert comm.last_route == route
        assert (taken == 10 * np.arange(size)[:, None] + rank).all()
        assert (all_x == given).all()
        uneven.fill(-1)
        start = sum(counts[:rank])
        uneven[start : start + counts[rank]] = rank
        comm.allgatherv(uneven[start : start + counts[rank]], counts, out=uneven)
        assert (uneven == np.repeat(np.arange(size), counts)).all()


def test_short_arrays_and_those_with_gaps_are_ordinary_ones(comm: mpicoll.Communicator) -> None:
    whole = comm.empty((LONG, 2))
    torchs = torch.from_numpy(whole)
    xs: list[Any] = [whole.reshape(-1)[: blocks.LEAST // 8 - 1], whole[:, 1], torchs[:, 1]]
    for x in xs:
        for _ in range(2):
            whole.fill(1)
            comm.allreduce(x, out=x)
            assert comm.last_route == NODE
            assert (x == comm.size).all()


def test_results_lie_where_inputs_do(comm: mpicoll.Communicator) -> None:
    x = comm.empty((comm.size, LONG), np.float32)
    x.fill(comm.rank)
    for given in (x, torch.from_numpy(x), torch.from_numpy(x).view(torch.bfloat16)):
        for name in ("allreduce", "reduce_scatter", "allgather", "alltoall"):
            getattr(comm, name)(given)
            assert comm.last_route == SHARED, (name, type(given))
    gathered = comm.allgather(x)
    assert gathered.shape == (comm.size, comm.size, LONG)
    assert all((gathered[r] == r).all() for r in range(comm.size))
    at_root = comm.reduce(x)
    assert comm.last_route == SHARED
    assert at_root is None or (at_root == sum(range(comm.size))).all()
    ordinary = comm.allreduce(np.ones(LONG))
    assert blocks.own_at(ordinary.ctypes.data, 1) is None


def test_memory_that_one_rank_cannot_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others do not take its next call for what is missing of this one: none has a wrong result."""
    comm = mpicoll.Communicator()  # which is never freed, because the others' last call is never complete

    def refuse(_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    xs = [comm.zeros(1 << 17) for _ in range(2)]
    if comm.rank == 0:
        monkeypatch.setattr("mpicoll.fabrics.routes.node.opened", refuse)
    what = r"allreduce: the \d+ bytes of memory that rank \d+ gives \(process \d+\) cannot be opened: .*too many"
    requests = [comm.iallreduce(x, out=x) for x in xs]
    with pytest.raises(
        MessageError, match=what if comm.rank == 0 else r"cannot be opened|another rank makes another call"
    ):
        requests[0].wait()
    if comm.rank == 0:  # nobody completes the others' last one
        with pytest.raises(MessageError, match=r"cannot be opened|another rank makes another call"):
            requests[1].wait()


def test_shared_arrays_are_found_in_the_first_call_that_all_have_them(comm: mpicoll.Communicator) -> None:
    n = choose.LONG_MOVES // 8
    ordinary, shared = np.empty(n), comm.empty(n)
    for turn in range(12):
        have_them = ("none", "all", "all but rank 0")[turn % 3]
        x = ordinary if have_them == "none" or (have_them != "all" and comm.rank == 0) else shared
        x[:] = np.arange(n) + turn if comm.rank == 0 else -1
        assert comm.bcast(x)[-1] == n - 1 + turn
        assert (x == np.arange(n) + turn).all()
        assert (comm.last_route == SHARED) == (have_them == "all")
