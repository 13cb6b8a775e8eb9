"""A program of torch's in which ranks make different calls. Argument: the NAME of what is wrong."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def async_against_sync(rank: int, x: torch.Tensor) -> None:
    dist.all_reduce(x, async_op=rank == 1)
    dist.broadcast(x, rank // 2)
    dist.barrier()


def asynchronous(rank: int, x: torch.Tensor) -> None:
    dist.all_reduce(x, dist.ReduceOp.MAX if rank else dist.ReduceOp.MIN, async_op=True)


def receives_beside_a_loader(rank: int, x: torch.Tensor) -> None:
    """The group has a thread of its own, and torch's DataLoader has threads and a handler of SIGCHLD."""
    dist.all_reduce(x, async_op=True).wait()
    for _ in DataLoader(TensorDataset(x), num_workers=1):
        dist.recv(x, (rank + 1) % 3)


WRONG = {
    "async against sync": async_against_sync,
    "asynchronous": asynchronous,
    "receives beside a loader": receives_beside_a_loader,
}


if __name__ == "__main__":
    dist.init_process_group("mpicoll")
    rank, x = dist.get_rank(), torch.ones(6)
    dist.all_reduce(x)
    WRONG[sys.argv[1]](rank, x)
