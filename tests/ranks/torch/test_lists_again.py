"""Lists of tensors in calls that were made before, which the kernel makes: other tensors, in other memory and layouts,
and calls under way meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import mpicoll
import mpicoll.torch as dist
from mpicoll.errors import ArgumentError, DtypeError
from mpicoll.node import loaded
from mpicoll.torch.group import ProcessGroup

pytestmark = pytest.mark.sizes(1, 2, 3)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "new": lambda x: x.clone(),
    "strided": lambda x: torch.stack([x, x], 1)[:, 0],
    "backwards in memory": lambda x: x.flip(0).as_strided((len(x),), (1,)).flip(0),
    "a parameter": lambda x: torch.nn.Parameter(x.clone()),
}
N = 5


def numbers(rank: int, block: int, turn: int) -> Tensor:
    """What a rank gives as this block of a list."""
    return torch.arange(N, dtype=torch.float64) + 100 * rank + 10 * block + turn


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["alone", "beside another", "asynchronous", "asynchronous, and rank 0 is late"])
def test_lists_again(rank: int, size: int, layout: str, how: str) -> None:
    there, ranks, is_async, under_way = LAYOUTS[layout], range(size), how.startswith("async"), how == "beside another"

    def made(call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        if how.endswith("late") and rank == 0:
            sleep(0.01)  # the others' calls are under way
        work = call(*arguments, **named, async_op=is_async)
        assert (work is not None) == is_async
        if is_async:
            written = work.get_future().wait()
            into = arguments[0] if call is not dist.gather else arguments[1] or []
            assert [x.data_ptr() for x in written] == [
                x.data_ptr() for x in ([into] if isinstance(into, Tensor) else into)
            ]

    for turn in range(4):
        beside = [torch.empty(N, dtype=torch.float64) for _ in ranks]
        other = dist.all_gather(beside, numbers(rank, 7, turn), async_op=True) if under_way else None
        got = [there(torch.zeros(N, dtype=torch.float64)) for _ in ranks]
        given = [there(numbers(rank, block, turn)) for block in ranks]
        made(dist.all_gather, got, given[0])
        assert all(torch.equal(got[r], numbers(r, 0, turn)) for r in ranks)
        made(dist.all_to_all, got, given)
        assert all(torch.equal(got[r], numbers(r, rank, turn)) for r in ranks)
        made(dist.gather, given[0], got if rank == size - 1 else None, dst=size - 1)
        if rank == size - 1:
            assert all(torch.equal(got[r], numbers(r, 0, turn)) for r in ranks)
        made(dist.scatter, got[0], given if rank == 0 else [])
        assert torch.equal(got[0], numbers(0, rank, turn))
        made(dist.reduce_scatter, got[0], given)
        assert torch.equal(got[0], sum((numbers(r, rank, turn) for r in ranks), torch.zeros(N)))
        if other is not None:
            other.wait()
            assert all(torch.equal(beside[r], numbers(r, 7, turn)) for r in ranks)


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "in one memory"])
def test_long_lists_that_lie_one_after_another(rank: int, size: int, apart: bool) -> None:
    n = 70_000
    memory = torch.full((2, size * n), -1.0)
    got = [*memory[0].chunk(size)]
    given = [*(torch.empty(size * n) if apart else memory[1]).chunk(size)]
    for block, each in enumerate(given):
        each[:] = 10 * rank + block
    for _ in range(2):
        dist.all_to_all(got, given)
        assert all((got[r] == 10 * r + rank).all() for r in range(size))
        dist.all_gather(got, given[0] if apart else got[0].fill_(rank))
        assert all((got[r] == (10 * r if apart else r)).all() for r in range(size))
        result = torch.empty(n)
        dist.reduce_scatter(result, given)
        assert (result == sum(10 * r + rank for r in range(size))).all()
    dist.all_gather([*reversed(got)], given[0])
    assert all((got[-1 - r] == 10 * r).all() for r in range(size))


def test_mistakes_in_lists_that_were_right_before(size: int) -> None:
    x, parts = torch.ones(N), [torch.empty(N) for _ in range(size)]
    wrong: list[tuple[type[Exception], Any]] = [
        (ArgumentError, torch.empty(size * N)),
        (DtypeError, [*parts[1:], torch.empty(N, dtype=torch.float64)]),
        (ArgumentError, [*parts[1:], torch.empty(1).expand(N)]),
        (ArgumentError, [*parts[1:], torch.empty(N + 1)]),
        (ArgumentError, [*parts, torch.empty(N)]),
        (ArgumentError, []),
        (ArgumentError, x),
    ]
    for error, given in wrong:
        dist.all_gather(parts, x)
        with pytest.raises(error):
            dist.all_gather(given, x)
        with pytest.raises(ArgumentError):
            dist.all_gather(parts, x.reshape(N, 1))
        with pytest.raises(ArgumentError):
            dist.all_gather_into_tensor(parts, x)  # type: ignore[arg-type]
    dist.all_gather(parts, x)
    assert all((each == 1).all() for each in parts)


def test_tensors_of_many_dimensions(rank: int, size: int) -> None:
    """The kernel does not copy them."""
    parts = [torch.zeros(*[4] * 6)[::2, ::2, ::2, ::2, ::2, ::2] for _ in range(size)]
    for turn in range(3):
        dist.all_gather(parts, torch.full([2] * 6, float(10 * turn + rank)))
        assert all((part == 10 * turn + r).all() for r, part in enumerate(parts))


class Meanwhile(TorchFunctionMode):
    """Calls a function once, when torch is asked about a tensor for this time: as another thread may do then."""

    def __init__(self, time: int, function: Callable[[], object]) -> None:
        super().__init__()
        self._left, self._function = time, function

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._left -= 1
        if self._left == 0:
            self._function()
        return function(*args, **(kwargs or {}))


def many_messages(comm: mpicoll.Communicator) -> None:
    """To this rank itself. The kernel needs a larger table for them."""
    for tag in range(300):
        x, y = np.zeros(2), np.zeros(2)
        sent = comm.isend(x, comm.rank, tag)
        comm.recv(y, comm.rank, tag)
        sent.wait()


@pytest.mark.skipif(loaded.kernel is None, reason=loaded.missing)
@pytest.mark.parametrize("what", ["shorter", "longer", "messages", "another call"])
@pytest.mark.parametrize("time", range(1, 10))
def test_what_happens_while_a_list_is_looked_at(rank: int, size: int, what: str, time: int) -> None:
    """It may get other tensors, which are not copied to memory of the others' size. What is known of calls may move. A
    signal's handler may make a call of its own, which leaves the memory of this one alone."""
    if size == 1:
        pytest.skip("Python makes the call of one rank")
    group = dist.new_group()
    assert isinstance(group, ProcessGroup)
    given, taken = ([torch.full((N,), 10.0 * rank + r) for r in range(size)] for _ in range(2))
    dist.all_to_all(taken, given, group)
    kept, changed = [*taken], [*given]
    others, result = ([torch.full((N,), -1.0 - r) for r in range(size)] for _ in range(2))
    for block in given:
        block += 1

    def change() -> None:
        if what == "shorter":
            changed.pop()
        elif what == "longer":
            changed[-1] = torch.zeros(1_000_000)
        elif what == "another call":
            dist.all_to_all(result, others, group)
            assert all((block == -1 - rank).all() for block in result)
        else:
            many_messages(group.comm)

    with Meanwhile(time, change):
        dist.all_to_all(taken, changed, group)
    assert all((block == 10 * r + rank + 1).all() for r, block in enumerate(kept))
    dist.destroy_process_group(group)


def test_a_long_list_in_memory_that_another_tensor_shares(size: int) -> None:
    """torch does not know that two tensors over one array of NumPy's share it."""
    for n in (16, 70_000):
        memory = np.zeros(size * n, np.float32)
        parts, x = [*torch.from_numpy(memory).chunk(size)], torch.from_numpy(memory)[:n]
        for _ in range(2):
            x[:] = 3
            dist.all_gather(parts, x)
            assert (memory == 3).all()
