"""Collectives that do not block."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll
from mpicoll.errors import StateError

torch = pytest.importorskip("torch")


def assert_equal(x: Any, y: Any) -> None:
    given, wanted = (each.to(torch.complex128).numpy() if isinstance(each, torch.Tensor) else each for each in (x, y))
    np.testing.assert_array_equal(given, wanted)


Case = Callable[[mpicoll.Communicator, Any], dict[str, Any]]

OPERATIONS: dict[str, Case] = {
    "barrier": lambda c, x: {},
    "bcast": lambda c, x: {"x": x(3), "root": c.size - 1},
    "reduce": lambda c, x: {"x": x(3), "op": "max", "root": c.size - 1},
    "allreduce": lambda c, x: {"x": x(3)},
    "scan": lambda c, x: {"x": x(3), "op": "prod"},
    "exscan": lambda c, x: {"x": x(3)},
    "gather": lambda c, x: {"x": x(3), "root": c.size - 1},
    "allgather": lambda c, x: {"x": x(2)},
    "scatter": lambda c, x: {"xs": x(c.size, 2), "root": 0, "out": x(2)},
    "reduce_scatter": lambda c, x: {"xs": x(c.size, 2), "op": "avg"},
    "alltoall": lambda c, x: {"xs": x(c.size, 2)},
    "gatherv": lambda c, x: {"x": x(c.rank + 1), "counts": range(1, c.size + 1)},
    "allgatherv": lambda c, x: {"x": x(c.rank + 1), "counts": range(1, c.size + 1)},
    "scatterv": lambda c, x: {
        "xs": x(sum(range(1, c.size + 1))), "counts": range(1, c.size + 1), "out": x(c.rank + 1)
    },
    "reduce_scatterv": lambda c, x: {"xs": x(sum(range(1, c.size + 1))), "counts": range(1, c.size + 1)},
    "alltoallv": lambda c, x: {"xs": x(c.size), "sendcounts": [1] * c.size, "recvcounts": [1] * c.size},
}  # fmt: skip

ARRAYS: dict[str, Callable[[int], Callable[..., Any]]] = {
    "float64": lambda r: lambda *shape: np.arange(float(np.prod(shape))).reshape(shape) + r + 1,
    "bfloat16": lambda r: lambda *shape: torch.arange(float(np.prod(shape))).reshape(shape).bfloat16() + r + 1,
    "with gaps": lambda r: lambda *shape: (np.arange(2.0 * np.prod(shape)).reshape(*shape, 2) + r + 1)[..., 0],
    "complex tensor": lambda r: lambda *shape: torch.full(shape, 1 + 2j) * (r + 1),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", ARRAYS)
def test_it_gives_what_the_blocking_call_gives(comm: mpicoll.Communicator, operation: str, kind: str) -> None:
    if kind == "complex tensor" and operation == "reduce":
        pytest.skip("complex numbers have no maximum")
    case, arrays = OPERATIONS[operation], ARRAYS[kind](comm.rank)
    expected = getattr(comm, operation)(**case(comm, arrays))
    pending = [getattr(comm, f"i{operation}")(**case(comm, arrays)) for _ in range(3)]
    comm.barrier()  # a blocking call may be made meanwhile
    for request in reversed(pending):
        request.wait()
        assert request.done
        if expected is None:
            assert request.result is None
        else:
            assert_equal(request.result, expected)
            assert type(request.result) is type(expected)
    if operation in ("reduce", "gather", "gatherv"):  # off the root, an output is not used
        out = np.zeros(1) if expected is None else expected
        assert getattr(comm, operation)(**case(comm, arrays), out=out) is (None if expected is None else out)


@pytest.mark.parametrize("kind", ["float64", "bfloat16", "with gaps"])
def test_calls_of_one_memory_are_under_way_together(comm: mpicoll.Communicator, kind: str) -> None:
    make = ARRAYS[kind](comm.rank)
    x, ys, scaled = make(3), [make(3) for _ in range(2)], make(3)
    for turn in range(3):
        x[...] = make(3) + turn
        requests = [comm.iallreduce(x, out=y) for y in ys]
        requests += [comm.ireduce(x, "max", root=0, out=scaled), comm.ibcast(ys[0][:0])]
        requests += [comm.iallreduce(x, "max", algorithm="ring"), comm.iallreduce(x, mpicoll.Op.premul_sum(0.5))]
        assert requests[0].result is ys[0]
        while not requests[-1].test():
            pass
        for request in requests:
            request.wait()
        for y in ys:
            assert_equal(y, comm.allreduce(x))
        assert_equal(requests[-2].result, comm.allreduce(x, "max"))
        assert_equal(requests[-1].result, comm.allreduce(x, mpicoll.Op.premul_sum(0.5)))


def test_a_rank_may_wait_for_another_message_first(comm: mpicoll.Communicator) -> None:
    """A call that does not block must not wait for other ranks, whatever carries it out."""
    for dtype, algorithm in ((torch.float32, None), (torch.bfloat16, None), (torch.float32, "ring")):
        x, y = torch.ones(5, dtype=dtype), np.zeros(1)
        if comm.rank == 0:
            request = comm.iallreduce(x, out=x, algorithm=algorithm)
            for r in range(1, comm.size):
                comm.send(y, r)
        else:
            comm.recv(y, 0)
            request = comm.iallreduce(x, out=x, algorithm=algorithm)
        request.wait()
        assert x.tolist() == [comm.size] * 5


def test_a_rank_that_waits_for_others_goes_on_with_what_it_has_begun(comm: mpicoll.Communicator) -> None:
    """Also where MPI, in which it waits, knows nothing of that."""
    xs = [np.full(4, r + 1.0) for r in range(20)]
    requests = [comm.iallreduce(x, out=x) for x in xs]
    if comm.rank == 0:
        for r in range(1, comm.size):
            MPI.COMM_WORLD.recv(source=r)
    else:
        requests[-1].wait()
        MPI.COMM_WORLD.send(None, 0)
    comm.barrier()
    assert all(request.test() for request in requests)
    assert [x[0] for x in xs] == [(r + 1.0) * comm.size for r in range(20)]


def test_many_are_under_way_with_messages_and_blocking_calls(comm: mpicoll.Communicator) -> None:
    generator, size = np.random.default_rng(5), comm.size
    pending: list[Any] = []
    for turn in range(300):
        n, how = int(generator.choice([1, 700, 9_000, 100_000])), int(generator.integers(0, 6))
        x = (comm.empty if turn % 4 == 0 else np.empty)(n, [np.float32, np.int64, np.float16][turn % 3])
        x.fill(comm.rank + turn % 7)
        expected = sum(range(size)) + size * (turn % 7)
        if how == 0:
            assert comm.allreduce(x)[-1] == expected
        elif how == 1:
            pending.append((comm.ibcast(x, root=turn % size), turn % size + turn % 7))
        elif how == 2:
            pending.append((comm.ireduce(x, root=turn % size), expected if comm.rank == turn % size else None))
        else:
            pending.append((comm.iallreduce(x, out=x if how == 3 else None), expected))
        while pending and (len(pending) > 8 or np.random.default_rng().integers(0, 4) == 0):
            request, wanted = pending.pop(np.random.default_rng().integers(0, len(pending)))
            request.wait()
            assert (None if request.result is None else request.result[-1]) == wanted
    for request, wanted in pending:
        request.wait()
        assert (None if request.result is None else request.result[-1]) == wanted


def test_each_call_under_way_has_its_own_scratch_memory(comm: mpicoll.Communicator) -> None:
    """The MPI library reads the scaled input from there until the root takes part."""
    x, op = np.full(300_000, comm.rank + 1.0), mpicoll.Op.premul_sum(2.0)
    if comm.rank == 0:
        for rank in range(1, comm.size):
            MPI.COMM_WORLD.recv(source=rank)
    requests = [comm.ireduce(x, op, root=0, algorithm="native") for _ in range(4)]
    if comm.rank > 0:
        MPI.COMM_WORLD.send(None, 0)
    for request in requests:
        request.wait()
        if comm.rank == 0:
            assert_equal(request.result, np.full(300_000, float(comm.size * (comm.size + 1))))


def test_a_collective_cannot_be_given_up(comm: mpicoll.Communicator) -> None:
    for x, algorithm in ((np.ones(2), None), (np.ones(2), "ring")):
        request = comm.iallreduce(x, algorithm=algorithm) if comm.rank == 0 else None
        if request is not None and comm.size > 1:
            with pytest.raises(StateError, match="cancel: a collective cannot be given up"):
                request.cancel()
        MPI.COMM_WORLD.Barrier()  # no other rank has begun it before
        request = request or comm.iallreduce(x, algorithm=algorithm)
        request.wait()


@pytest.mark.slow
def test_arrays_are_kept_until_it_is_complete_and_no_longer(comm: mpicoll.Communicator) -> None:
    for algorithm in (None, "ring"):
        x = torch.ones(1000)
        kept = weakref.ref(x)
        request = comm.iallreduce(x, out=x, algorithm=algorithm)
        request.result = None
        del x
        gc.collect()
        request.wait()
        request.result = None
        gc.collect()
        assert kept() is None


@pytest.mark.parametrize("dropped", [False, True])
def test_what_was_begun_is_complete_after_free(comm: mpicoll.Communicator, dropped: bool) -> None:
    """Open MPI would crash."""
    for n in (10, 100_000):
        with comm.split(0) or comm as other:
            request = other.iallreduce(np.ones(n))
            result = request.result
            if dropped:
                del request
        if not dropped:
            request.wait()
        assert (result == comm.size).all()
