"""The API that the tests of this folder call: mpicoll.torch, or with ``--api torch`` torch.distributed itself, whose
default group is then one of the registered backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed

import mpicoll.torch

dist: Any = mpicoll.torch
"""tests/ranks/torch/conftest.py chooses it before it imports a test."""


def choose(name: str) -> None:
    global dist
    dist = {"mpicoll": mpicoll.torch, "torch": torch.distributed}[name]


def through_torch() -> bool:
    """Whether the tests call torch.distributed."""
    return dist is torch.distributed


def ours_alone(why: str) -> pytest.MarkDecorator:
    """Marks a test of what mpicoll.torch does and torch.distributed, by design, does not."""
    return pytest.mark.skipif(through_torch(), reason=why)
