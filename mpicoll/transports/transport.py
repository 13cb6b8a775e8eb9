"""What a schedule's messages go through: the interface that each transport implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Array", "Region", "Transport"]

Array = np.ndarray[Any, Any]
Region = list[Array]
"""Runs of elements, each a 1-D array, in the order of the blocks. An empty list is a mere signal."""
Memory = TypeVar("Memory")
"""What the transport knows of a run of blocks: where they lie, or something else that an analysis follows."""


class Transport(ABC, Generic[Memory]):
    """How regions reach other ranks. What is named between two calls of ``end_step`` may proceed at once; the order
    of two messages between the same ranks is the order in which they are named."""

    @abstractmethod
    def send(self, peer: int, region: Memory) -> None:
        """Send the region."""

    @abstractmethod
    def recv(self, peer: int, region: Memory) -> None:
        """Take the region in."""

    @abstractmethod
    def recv_reduce(self, peer: int, mine: Memory, into: Memory, mine_first: bool) -> None:
        """Take a region in and combine it with ``mine``, in the order that ``mine_first`` says."""

    @abstractmethod
    def copy(self, source: Memory, target: Memory) -> None:
        """Copy a region to another."""

    @abstractmethod
    def end_step(self) -> None:
        """What was named since the last call is done before anything named later begins."""
