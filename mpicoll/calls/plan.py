"""What a repeated call keeps bound, and how the same call is recognised.

A plan is a function of no arguments: addresses, counts, datatypes and operations are bound in it already. It holds
addresses, not arrays; it is found again by where the memory lies *now*, how much of it, and its dtype, so that it
serves whatever array lies there and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from mpicoll.arrays.buffers import loaded_torch

__all__ = ["Plan", "Plans", "Workspace", "key_by", "sequence"]

Plan = Callable[[], object]


class Plans(dict[Hashable, Plan]):
    """A cache of plans, emptied when it is full: rebinding costs microseconds, and memory stays bounded."""

    LIMIT = 1024

    def keep(self, at: Hashable, plan: Plan) -> None:
        if len(self) >= self.LIMIT:
            self.clear()
        self[at] = plan


def key_by(address: Callable[[Any], int]) -> Callable[[Any], tuple[Hashable, ...] | None]:
    """The function that gives an array's key; ``address`` says where a NumPy array's memory begins."""

    def key(x: Any) -> tuple[Hashable, ...] | None:
        """What tells this array's memory from any other, as it lies now; None if it is not plain host memory."""
        kind = type(x)
        try:
            if kind is np.ndarray:
                # The flags hold what else may change under an array: contiguity and writability.
                return (address(x), x.size, x.dtype, x.flags.num)
            if kind in _TENSORS:
                if x.is_cpu and x.is_contiguous() and not x.is_neg() and not x.is_conj():
                    return (x.data_ptr(), x.numel(), x.dtype)
                return None
        except (RuntimeError, ValueError, BufferError):
            return None  # it has no memory that could be described: binding says what is wrong with it
        torch = loaded_torch()
        if torch is not None and not _TENSORS:
            _TENSORS.update((torch.Tensor, torch.nn.Parameter))
            return key(x)
        return None

    return key


_TENSORS: set[type] = set()


def sequence(*steps: Plan) -> Plan:
    """The steps, one after another, as one plan."""
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run


class Workspace:
    """Scratch memory of one communicator, whose calls use it one at a time.

    It belongs to no plan, so that a thousand cached plans do not hold a thousand vectors.
    """

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)

    def arrays(self, dtype: np.dtype[Any], *counts: int) -> list[np.ndarray[Any, Any]]:
        """Uninitialised 1-D arrays of these lengths, apart from each other; the next request gets the same memory."""
        need = sum(counts) * dtype.itemsize
        block = self._block  # another thread may bind a plan at this moment, and replace it
        if need > block.size:
            # Doubling: plans bound before still use the old block, and all old ones together are no larger than this.
            self._block = block = np.empty(max(need, 2 * block.size), np.uint8)
        everything = block[:need].view(dtype)
        ends = np.cumsum(counts)
        return [everything[end - n : end] for end, n in zip(ends, counts, strict=True)]
