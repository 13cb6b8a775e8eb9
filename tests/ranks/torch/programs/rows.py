"""A row of numbers for each rank, and what a collective makes of all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from mpicoll.torch.private import BACKENDS_IN_PYTHON


def row(rank: int) -> torch.Tensor:
    return torch.arange(1.0, 4.0) + 10 * rank


def everybodys(size: int) -> torch.Tensor:
    return torch.stack([row(r) for r in range(size)])


def total(size: int) -> torch.Tensor:
    return everybodys(size).sum(0)


def refused_without_backends_in_python() -> AbstractContextManager[Any]:
    """For calls of which torch's C++ asks a device's backend. Where it finds none it raises, and the group lives on."""
    return nullcontext() if BACKENDS_IN_PYTHON else pytest.raises(RuntimeError, match="No backend type associated")
