"""The buckets of DistributedDataParallel in memory that the ranks of a node share.

DDP's reducer copies gradients into buckets, and all-reduces these. It makes new buckets after the first backward pass.
So a bucket moves when it comes for the second time. Nothing but torch looks at it.
"""

from __future__ import annotations

import torch

from mpicoll.calls.rules import shares_buckets
from mpicoll.machine import blocks
from mpicoll.torch.functions.memory import move
from mpicoll.torch.groups.group import ProcessGroup

MOST = 1024
"""Addresses that are remembered."""


class Buckets:
    """The buckets that a group's rank has reduced. With MPICOLL_SHARE=off, no memory moves without being asked."""

    def __init__(self) -> None:
        self._on = shares_buckets()
        self._seen: set[int] = set()

    def take(self, tensor: torch.Tensor, group: ProcessGroup) -> None:
        """Move the memory of this bucket, which is about to be reduced, if it has come before."""
        if not self._on or not tensor.is_cpu or tensor.layout != torch.strided or tensor.nbytes < blocks.LEAST:
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
