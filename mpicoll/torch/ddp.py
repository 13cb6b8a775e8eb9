"""What a group does for the reducer of DistributedDataParallel: its buckets, and how the backward pass waits for it.

DDP's reducer copies gradients into buckets, and starts to all-reduce each as soon as its gradients are there. It makes
new buckets after the first backward pass. So a bucket moves to shared memory when it comes for the second time. Nothing
but torch looks at it.

The backward pass goes on meanwhile. On a rank with one core, a thread that waits in MPI takes the core from it. There
it is faster if the backward pass waits for each all-reduce, but only for a moment: later in its backward pass a program
may send a message for which another rank waits before it comes to that all-reduce. To wait for longer would be a
deadlock."""

from __future__ import annotations

import sys

import torch

from mpicoll.calls.settings import overlaps, shares_buckets
from mpicoll.launch.launch_env import cores_of_a_rank
from mpicoll.machine import blocks
from mpicoll.torch.group import ProcessGroup
from mpicoll.torch.memory import move
from mpicoll.torch.private import backward_pass

MOMENT = 0.1  # seconds for which the backward pass waits for an all-reduce. If all ranks are there, it takes far less
MOST = 1024  # addresses that are remembered


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


def waits() -> bool:
    """Whether the backward pass waits, as MPICOLL_DDP_OVERLAP says: if that is 0, with however many cores."""
    wish = overlaps()
    return cores_of_a_rank() < 2 if wish is None else not wish


def called_by_reducer() -> bool:
    """Whether DDP's reducer called the function that calls this one.

    The reducer is C++. Autograd's engine, C++ too, calls it. So the function's caller is the Python that started the
    engine, or nobody if the engine uses a thread of its own. Functions of this package may stand between. Nothing else
    tells: torch passes the options that it passes for a program's own call, and a program may make one in a hook of its
    backward pass. Nobody may move that tensor. Outside a backward pass, no frame is looked at."""
    if backward_pass() < 0:
        return False
    caller = sys._getframe(1).f_back
    while caller is not None and caller.f_globals.get("__package__") == __package__:
        caller = caller.f_back
    return caller is None or caller.f_globals.get("__name__") == "torch.autograd.graph"
