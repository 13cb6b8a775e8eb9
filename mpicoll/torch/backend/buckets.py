"""The buckets of DistributedDataParallel in memory that the ranks of a node share.

DDP's reducer copies gradients into buckets, and all-reduces these. It makes new buckets after the first backward pass.
So a bucket moves when it comes for the second time. Nothing but torch looks at it.
"""

from __future__ import annotations

import os

import torch

from mpicoll.errors import ArgumentError
from mpicoll.machine import blocks
from mpicoll.torch.functions.memory import move
from mpicoll.torch.groups.group import ProcessGroup

__all__ = ["SWITCH", "Buckets"]

SWITCH = "MPICOLL_SHARE"
"""The environment variable that decides. off: no memory moves without being asked."""
MOST = 1024
"""Addresses that are remembered."""


class Buckets:
    """The buckets that a group's rank has reduced. Raises ArgumentError if the environment variable has another
    value."""

    def __init__(self) -> None:
        given = os.environ.get(SWITCH, "")
        if given not in ("", "off"):
            raise ArgumentError("init_process_group", SWITCH, "off, or nothing", repr(given))
        self._on = not given
        self._seen: set[int] = set()

    def take(self, tensor: torch.Tensor, group: ProcessGroup) -> None:
        """Move the memory of this bucket, which is about to be reduced, if it has come before."""
        if not self._on or not tensor.is_cpu or tensor.nbytes < blocks.LEAST:
            return
        address = tensor.data_ptr()
        if blocks.own_at(address, 1) is not None:
            return
        if address not in self._seen:
            if len(self._seen) >= MOST:
                self._seen.clear()
            self._seen.add(address)
            return
        storage = tensor.untyped_storage()
        if storage.nbytes() == tensor.nbytes:
            move(storage, group)
