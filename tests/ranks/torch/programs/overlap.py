"""Whether the backward pass of DistributedDataParallel waits for its all-reduces."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch
from mpicoll.errors import TimeoutError


class TwoLayers(nn.Module):
    """In the backward pass, rank 1 comes to its second layer when rank 0 has left its own, or after ``limit``.

    The second layer's gradients are reduced first. If rank 0 waits for that, it cannot leave before rank 1 has come.
    """

    def __init__(self, rank: int, limit: timedelta) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        self.rank, self.limit = rank, limit
        self.messages = dist.new_group(backend="mpicoll")
        self.left: Any = None
        self.left_in_time = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h.register_hook(self.leave_second)
        y: torch.Tensor = self.second(h)
        y.register_hook(self.come_to_second)
        return y

    def come_to_second(self, _: torch.Tensor) -> None:
        if self.rank == 1:
            self.left = mpicoll.torch.irecv(torch.empty(1), 0, self.messages)
            try:
                self.left_in_time = self.left.wait(self.limit)
            except TimeoutError:
                self.left_in_time = False

    def leave_second(self, _: torch.Tensor) -> None:
        if self.rank == 0:
            mpicoll.torch.send(torch.ones(1), 1, self.messages)


def backward_waits(rank: int, expected: bool, **options: Any) -> bool:
    """Whether rank 0's backward pass waited for its first all-reduce. ``expected`` says for how long to look.

    All ranks call this, with the same options of DistributedDataParallel.
    """
    model = TwoLayers(rank, timedelta(seconds=0.2 if expected else 60))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001, **options)
    for _ in range(2):  # the first pass finds out in which order gradients come
        ddp(torch.ones(1, 32)).sum().backward()
        if rank == 1:
            model.left.wait()
    found = [model.left_in_time]
    dist.broadcast_object_list(found, 1)
    dist.destroy_process_group(model.messages)
    return not found[0]
