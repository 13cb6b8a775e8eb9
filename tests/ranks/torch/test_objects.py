"""Collectives and messages of Python objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ranks.torch.api import dist, through_torch
from tests.ranks.torch.cases import Group


def thing(rank: int) -> dict[str, Any]:
    return {"rank": rank, "nested": {"list": [rank] * rank, "tensor": torch.full((rank,), rank)}, "text": "é" * rank}


def same(found: Any, expected: dict[str, Any]) -> bool:
    tensors = found["nested"].pop("tensor"), expected["nested"].pop("tensor")
    return bool(found == expected) and torch.equal(*tensors)


@pytest.mark.parametrize("which", range(5))
def test_objects(groups: list[Group], which: int) -> None:
    """Every root of every group gets and sends nested objects with tensors, of different sizes on each rank."""
    g = groups[which]
    if g.rank is None:
        return
    found: list[Any] = [None] * g.size
    dist.all_gather_object(found, thing(g.rank), group=g.handle)
    assert all(same(x, thing(r)) for r, x in enumerate(found))
    for root in range(g.size):
        gathered: list[Any] | None = [None] * g.size if g.rank == root else None
        dist.gather_object(thing(g.rank), gathered, dst=g.ranks[root], group=g.handle)
        assert gathered is None or all(same(x, thing(r)) for r, x in enumerate(gathered))

        told = [thing(7), "text", 3.5] if g.rank == root else [None] * 3
        dist.broadcast_object_list(told, group_src=root, group=g.handle)
        assert same(told[0], thing(7))
        assert told[1:] == ["text", 3.5]

        mine: list[Any] = [None, "second"]
        given = [thing(r) for r in range(g.size)] if g.rank == root else None
        dist.scatter_object_list(mine, given, src=g.ranks[root], group=g.handle)
        assert same(mine[0], thing(g.rank))
        assert mine[1] == "second"


@pytest.mark.mpi(min_size=2)
def test_messages_of_objects(groups: list[Group], rank: int, size: int) -> None:
    for g in (groups[0], groups[4]):
        if rank == 0:
            dist.send_object_list([thing(3), "text"], 1, group=g.handle)
            dist.send_object_list([1], group_dst=g.ranks.index(1), group=g.handle, use_batch=True)
        elif rank == 1:
            told: list[Any] = [None, None]
            assert dist.recv_object_list(told, 0, group=g.handle) == 0
            assert same(told[0], thing(3))
            assert told[1] == "text"
            one: list[Any] = [None]
            anyone = {"src": 0} if through_torch() else {}  # it takes objects from a rank that is named alone
            assert dist.recv_object_list(one, **anyone, group=g.handle) == 0
            assert one == [1]
