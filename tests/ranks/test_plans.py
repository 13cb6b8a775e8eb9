"""Plans are found again: ``allreduce`` spells their key in line, and must spell it as ``plan`` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import mpicoll

KINDS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.ones(5, np.float32),
    "numpy, two dimensions": lambda: np.ones((5, 3), np.float32),
    "numpy, no dimension": lambda: np.ones((), np.float32),
    "torch": lambda: torch.ones(5),
    "torch, bfloat16": lambda: torch.ones(5, dtype=torch.bfloat16),
    "torch, parameter": lambda: torch.nn.Parameter(torch.ones(5)),
}
HOW: dict[str, dict[str, Any]] = {
    "a name": {"op": "max"},
    "an Op": {"op": mpicoll.Op.premul_sum(0.5)},
    "an algorithm": {"op": "sum", "algorithm": "ring"},
}


@pytest.fixture
def comm() -> Iterator[mpicoll.Communicator]:
    with mpicoll.Communicator() as it:
        yield it


@pytest.mark.parametrize("in_place", [False, True], ids=["out", "in place"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", KINDS)
def test_allreduce_and_plan_spell_one_key(comm: mpicoll.Communicator, kind: str, how: str, in_place: bool) -> None:
    x = KINDS[kind]()
    out = x if in_place else KINDS[kind]()
    comm.allreduce(x, out=out, **HOW[how])
    (known,) = comm._engine.plans.values()
    assert comm._engine.plan("allreduce", x, None if in_place else out, **HOW[how]) is known
    comm.allreduce(x, out=out, **HOW[how])
    assert list(comm._engine.plans.values()) == [known]


@pytest.mark.parametrize("kind", KINDS)
def test_another_call_has_another_key(comm: mpicoll.Communicator, kind: str) -> None:
    x, y = KINDS[kind](), KINDS[kind]()
    comm.allreduce(x, out=y)
    others: list[dict[str, Any]] = [
        {"x": x, "op": "sum"},
        {"x": y, "out": x, "op": "sum"},
        {"x": x, "out": y, "op": "min"},
        {"x": x, "out": y, "op": "sum", "algorithm": "ring"},
    ]
    for known, other in enumerate(others, 1):
        assert len(comm._engine.plans) == known
        comm._engine.plan("allreduce", **other)
    assert len(comm._engine.plans) == 5
