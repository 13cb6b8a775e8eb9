"""Plans are found again, whatever the call, the array or its layout. ``allreduce`` spells their key in line, and must
spell it as ``plan`` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicoll
from mpicoll.errors import ArgumentError


class Subclass(np.ndarray[Any, Any]):
    """An array whose type is not NumPy's own."""


KINDS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.ones(5, np.float32),
    "numpy, two dimensions": lambda: np.ones((5, 3), np.float32),
    "numpy, no dimension": lambda: np.ones((), np.float32),
    "numpy, with gaps": lambda: np.ones((5, 2), np.float32)[:, 0],
    "numpy, in another order": lambda: np.ones((2, 3), np.float32).T,
    "numpy, another type": lambda: np.ones(5, np.float32).view(Subclass),
    "torch": lambda: torch.ones(5),
    "torch, with gaps": lambda: torch.ones(5, 2)[:, 0],
    "torch, bfloat16": lambda: torch.ones(5, dtype=torch.bfloat16),
    "torch, parameter": lambda: torch.nn.Parameter(torch.ones(5)),
}


def test_each_layout_of_one_memory_has_a_plan(comm: mpicoll.Communicator) -> None:
    """A plan never serves memory that it was not bound for, and copies in each call."""
    memory = np.arange(64.0)
    layouts = [
        memory[:6], memory[:12:2], memory[:18:3], memory[5::-1], memory[:6].reshape(2, 3), memory[:6].reshape(3, 2).T,
        memory[:12].reshape(3, 4)[:, :2], memory.reshape(8, 8)[:2, :3], memory.view(np.int64)[:12:2],
    ]  # fmt: skip
    for _ in range(2):
        for x in layouts:
            memory[:] = np.arange(64.0) + comm.rank
            memory.view(np.int64)[1::2] += comm.rank if x.dtype == np.int64 else 0
            own = x.copy()
            expected = sum(comm.allgather_object(own))
            before = memory.copy()
            assert comm.allreduce(x, out=x) is x
            assert (x == expected).all()
            x[...] = own
            assert memory.tobytes() == before.tobytes()


def test_messages_with_gaps_are_bound_once(comm: mpicoll.Communicator) -> None:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    grid = np.zeros((4, 6))
    nobody, known = MPI.PROC_NULL, set()
    for turn in range(3):
        grid[:] = 100 * turn + 10 * comm.rank
        comm.sendrecv(grid[:, 1], after, grid[:, -1], before)
        comm.sendrecv(grid[:, 2], after, grid[:, 2], before)
        comm.sendrecv(grid[:, 1], nobody, grid[:, 0], nobody)
        comm.sendrecv(grid[:, 1], after, grid[:, 0], nobody) if comm.rank < after else None
        comm.sendrecv(grid[:, 1], nobody, grid[:, 0], before) if before < comm.rank else None
        requests = [comm.irecv(grid[:, column], before, tag=column) for column in (3, 4)]
        twice = [comm.isend(grid[:, 1], after, tag=column) for column in (3, 4)]
        for request in (*requests, *twice):
            request.wait()
        came, own = 100 * turn + 10 * before, 100 * turn + 10 * comm.rank
        first = came if before < comm.rank else own
        assert grid.tolist() == [[first, own, came, came, came, came]] * 4
        known.add(len(comm._engine.bound_messages))
    assert len(known) == 1
    assert min(known) >= 5


@pytest.mark.parametrize("kind", ["numpy", "torch", "torch, bfloat16"])
def test_arrays_elsewhere_are_taken_by_a_plan_that_is_known(comm: mpicoll.Communicator, kind: str) -> None:
    """But memory that overlaps is still refused, and one memory is in place."""
    memory, total = np.concatenate([KINDS["numpy"]()] * 6), float(comm.size)
    given: Any = memory if kind == "numpy" else torch.from_numpy(memory)
    given = given if kind != "torch, bfloat16" else given.bfloat16()

    def part(begin: int, n: int = 5) -> Any:
        return given[begin : begin + n]

    comm.allreduce(part(0), out=part(5))
    comm.allreduce(part(0))
    comm.allgather(part(0), out=KINDS[kind]().repeat(comm.size))
    for begin in (5, 12, 20):
        part(begin)[...] = begin + comm.rank
        expected = [comm.size * begin + sum(range(comm.size))] * 5
        assert comm.allreduce(part(begin)).tolist() == expected
        comm.allreduce(part(begin), out=part(0))
        assert part(0).tolist() == expected
        everybody = comm.allgather(part(begin))
        assert everybody[:, 0].tolist() == [begin + r for r in range(comm.size)]
    with pytest.raises(ArgumentError, match=r"out: expected .* overlap"):
        comm.allreduce(part(12), out=part(14))
    part(12)[...] = 1
    for _ in range(2):
        comm.allreduce(part(12), out=part(12))
    assert part(12).tolist() == [total * total] * 5


@pytest.mark.parametrize("operation", ["allreduce", "scan"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_result_is_a_new_array(comm: mpicoll.Communicator, kind: str, operation: str) -> None:
    """Its kind, shape and dtype are those of the first one, whoever has made it."""
    x = KINDS[kind]()
    ranks = comm.size if operation == "allreduce" else comm.rank + 1
    made = [getattr(comm, operation)(x) for _ in range(5)]
    assert {(type(y), tuple(y.shape), y.dtype) for y in made} == {(type(made[0]), tuple(x.shape), x.dtype)}
    for y in made:
        y += 1  # which nobody else sees
        assert (y == ranks + 1).all()
    assert (x == 1).all()
    empty = comm.allreduce(x[:0]) if x.ndim else None
    assert empty is None or (empty.shape == x[:0].shape and empty.dtype == x.dtype)


class Interrupted(np.ndarray[Any, Any]):
    """An array at which Ctrl-C is pressed while its shape is read for the first time."""

    was = False

    @property  # type: ignore[misc]
    def shape(self) -> Any:
        if not Interrupted.was:
            Interrupted.was = True
            raise KeyboardInterrupt
        return super().shape


def test_what_a_handler_raises_while_a_new_array_is_made_is_not_lost(comm: mpicoll.Communicator) -> None:
    comm.allreduce(np.ones(5))
    x = np.ones(5).view(Interrupted)
    Interrupted.was = False
    with pytest.raises(KeyboardInterrupt):
        comm.allreduce(x)
    assert (comm.allreduce(x) == comm.size).all()
