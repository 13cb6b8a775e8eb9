"""Every wrong argument is one exception that says what is wrong, before anything is written, and the group lives on.

All ranks make the same mistake at once here; what one rank's mistake does to the others is in tests/jobs."""

from __future__ import annotations

import pytest
import torch

import mpicoll.torch as dist
from mpicoll.errors import ArgumentError, MessageError, MpicollError
from tests.ranks.torch.mistakes import LEFT_OUT, RIGHT, Scene, mistakes_of

pytestmark = [pytest.mark.sizes(1, 2), pytest.mark.any_mpi]


@pytest.mark.parametrize("function", RIGHT)
def test_every_mistake(function: str, size: int, rank: int) -> None:
    numbers = {"size": size, "rank": rank, "size+1": size + 1, "size-1": size - 1}
    numbers |= {"2*size": 2 * size, "4*size": 4 * size, "5*size": 5 * size, "4*size+1": 4 * size + 1}
    for name, changes, error, argument, expected, given in mistakes_of(function):
        if function == "send" and size == 1 and argument in ("tensor", "tag"):
            continue  # there is nobody to send to, and that is said first
        scene, where = Scene(), f"{function}: {name}"
        arguments = {**RIGHT[function](scene), **changes(scene)}
        with pytest.raises(MpicollError) as caught:
            getattr(dist, function)(**{k: v for k, v in arguments.items() if v is not LEFT_OUT})
        e = caught.value
        assert type(e) is error, (where, repr(e))
        text = str(e)
        assert text.startswith(f"{function}: "), (where, text)
        for key, value in numbers.items():
            expected, given = (x.replace("{" + key + "}", str(value)) for x in (expected, given))
        if argument is None:
            assert expected in text, (where, text)
            assert given in text, (where, text)
        else:
            assert isinstance(e, ArgumentError)
            assert (e.operation, e.argument) == (function, argument), (where, text)
            assert expected in e.expected, (where, text)
            assert given in e.given, (where, text)
            assert text == f"{e.operation}: {e.argument}: expected {e.expected}; given {e.given}"
        assert scene.unchanged(), where
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [size] * 2


@pytest.mark.mpi(min_size=2)
def test_only_the_source_of_a_broadcast_may_be_read_only(rank: int, size: int) -> None:
    """Four elements in one place can be sent, but not received into."""
    x = torch.full((1,), float(rank)).expand(4)
    with pytest.raises(ArgumentError, match="broadcast: tensor: expected an array that can be written to"):
        dist.broadcast(x, (rank + 1) % size)
    assert x.tolist() == [rank] * 4
    y = x if rank == 1 else torch.zeros(4)
    dist.broadcast(y, 1)
    assert y.tolist() == [1] * 4


def test_a_list_is_for_the_root_alone(rank: int, size: int) -> None:
    """Ranks but the root pass None or an empty list. The root passes a list that is too long: all are at fault."""
    x, xs = torch.ones(1), [torch.ones(1)] * (size + (rank == 0))
    objects = [1] * (size + (rank == 0))
    fault = "a list of" if rank == 0 else f"None on rank {rank}: only the (source|destination), rank 0"
    for call, argument in (
        (lambda: dist.scatter(x, xs, 0), "scatter: scatter_list"),
        (lambda: dist.gather(x, xs, 0), "gather: gather_list"),
        (lambda: dist.gather_object(1, objects, 0), "gather_object: object_gather_list"),
    ):
        with pytest.raises(ArgumentError, match=f"{argument}: expected {fault}"):
            call()
    dist.scatter(x, [torch.ones(1)] * size if rank == 0 else [], 0)
    dist.gather(x, [torch.ones(1)] * size if rank == 0 else [], 0)
    dist.gather_object(1, [None] * size if rank == 0 else [], 0)


@pytest.mark.mpi(min_size=2)
def test_ranks_that_disagree_get_an_error_each(rank: int, size: int) -> None:
    """Of the one call that compares something itself."""
    last = rank == size - 1
    objects = [None] * (2 if last else 1)
    if last:
        with pytest.raises(MessageError, match="broadcast_object_list: object_list: expected 1 objects, as rank 0"):
            dist.broadcast_object_list(objects)
        assert objects == [None, None]
    else:
        dist.broadcast_object_list(objects)
    dist.barrier()
