"""What a schedule's messages go through: the interface that each transport implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from mpicoll.calls.plan import Plan

Array = np.ndarray[Any, Any]
Region = list[Array]
"""Memory of some blocks: runs of elements, 1-D arrays in their order. Without runs it is a mere signal."""


class Transport(ABC):
    """Brings the memory of blocks to other ranks. The calls between two calls of ``end_step`` are the actions of one
    step, which may proceed at the same time. The messages between two ranks are matched in the order of the calls."""

    @abstractmethod
    def send(self, peer: int, region: Region) -> None:
        """Send the region to the peer."""

    @abstractmethod
    def recv(self, peer: int, region: Region) -> None:
        """Receive the region from the peer."""

    @abstractmethod
    def recv_reduce(self, peer: int, mine: Region, into: Region, mine_first: bool) -> None:
        """Receive a region from the peer and combine it with ``mine``. ``mine_first`` says in which order."""

    @abstractmethod
    def copy(self, source: Region, target: Region) -> None:
        """Copy a region to another one."""

    @abstractmethod
    def end_step(self) -> None:
        """End the step. All its actions are done before an action of the next step begins."""


class BoundTransport(Transport):
    """A transport that carries nothing out by itself: ``steps`` are the plans of the steps so far."""

    steps: list[Plan]

    def plan(self, run: Plan, *memory: Array) -> Plan:
        """``run``, which makes these steps, as a plan that keeps what they need, and their ``memory``."""
        return run
