"""Programs that go wrong, by mpi4py or by torch over gloo: ``plain_faults.py mpi|torch NAME``. Nothing in them knows
mpicoll."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

OTHERS = "ranks made different calls"
ENDED = "a rank has finished, and others wait for it"
STUCK = "ranks wait for each other, and none of them can go on"
LATE = "a call was not complete in time"
CRASHED = rf"{OTHERS}|a rank's process has ended before its program has|The last collective of each rank"
"""Gloo ends a process that gets more than it expects, at once, and so may MPICH."""


class ByMpi:
    """What the programs do, by mpi4py."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.size, self.made = self.comm.rank, self.comm.size, 0

    def sum(self, count: int = 4, dtype: str = "float64", op: str = "SUM", among: Any = None) -> None:
        (among or self.comm).Allreduce(self.mpi.IN_PLACE, np.ones(count, dtype), getattr(self.mpi, op))

    def begin_sum(self) -> Any:
        return self.comm.Iallreduce(self.mpi.IN_PLACE, np.ones(4))

    def broadcast(self, root: int = 0) -> None:
        self.comm.Bcast(np.ones(4), root)

    def barrier(self) -> None:
        self.comm.Barrier()

    def send(self, to: int, tag: int = 0) -> None:
        self.comm.Ssend(np.ones(4), to, tag)

    def receive(self, of: int, tag: int = 0) -> None:
        self.comm.Recv(np.ones(4), np.int64(of), np.int64(tag))  # type: ignore[arg-type]  # as from an array

    def another(self) -> Any:
        """In ways that no example has: the first one by Idup, others of a group alone."""
        self.made += 1
        if self.made > 1:
            return self.mpi.Intracomm.Create_from_group(self.comm.Get_group())
        made, request = self.comm.Idup()
        request.Wait()
        return made


class ByTorch:
    """The same by torch.distributed."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, count: int = 4, dtype: str = "float64", op: str = "SUM", among: Any = None) -> None:
        x = self.torch.ones(count, dtype=getattr(self.torch, dtype))
        self.dist.all_reduce(x, getattr(self.dist.ReduceOp, op), among)

    def begin_sum(self) -> Any:
        return self.dist.all_reduce(self.torch.ones(4), async_op=True)

    def broadcast(self, root: int = 0) -> None:
        self.dist.broadcast(self.torch.ones(4), root)

    def barrier(self) -> None:
        self.dist.barrier()

    def send(self, to: int, tag: int = 0) -> None:
        self.dist.send(self.torch.ones(1 << 22), to, tag=tag)

    def receive(self, of: int, tag: int = 0) -> None:
        self.dist.recv(self.torch.ones(4), of, tag=tag)

    def another(self) -> Any:
        return self.dist.new_group([*range(self.size)])


Plain = ByMpi | ByTorch
Program = Callable[[Plain], object]


def other_collective(it: Plain) -> None:
    it.broadcast() if it.rank == 1 else it.barrier()


def one_call_less(it: Plain) -> None:
    for _ in range(2 if it.rank == 1 else 3):
        it.sum()
    it.broadcast()


def begins_and_ends(it: Plain) -> None:
    if it.rank == 1:
        it.begin_sum().wait() if isinstance(it, ByTorch) else it.begin_sum().Wait()


def ends_before_a_message(it: Plain) -> None:
    if it.rank == 0:
        it.receive(1)


def handles(it: Plain) -> None:
    try:
        if it.rank == 1:
            raise ValueError("the cause")
        it.sum()
    finally:
        it.broadcast()


def is_stopped(it: Plain) -> None:
    if it.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def is_busy(it: Plain) -> None:
    if it.rank == 1:
        time.sleep(600)


def in_another_order(it: Plain) -> None:
    one, other = it.another(), it.another()
    for among in (one, other) if it.rank == 1 else (other, one):
        it.sum(1 << 18, among=among)


FAULTS: dict[str, tuple[Program, str, str]] = {
    "another collective": (other_collective, OTHERS, "rank 1"),
    "another operation": (lambda it: it.sum(op="MAX" if it.rank == 1 else "SUM"), OTHERS, " max of "),
    "another length": (lambda it: it.sum(8 if it.rank == 1 else 4), CRASHED, "rank "),
    "another dtype": (lambda it: it.sum(*(4, "float32") if it.rank == 1 else (2, "float64")), CRASHED, "rank "),
    "another root": (lambda it: it.broadcast(it.rank % 2), OTHERS, "root 1"),
    "a call less": (one_call_less, OTHERS, "rank 1"),
    "a call while it handles an exception": (handles, OTHERS, "(while it handles ValueError: the cause)"),
    "the program ends": (begins_and_ends, ENDED, "ended"),
    "the sender ends": (ends_before_a_message, ENDED, "no message came from rank 1 (tag 0)"),
    "stopped": (is_stopped, LATE, "does not answer"),
    "busy": (is_busy, LATE, "has not arrived"),
    "each receives first": (lambda it: it.receive((it.rank + 1) % it.size), STUCK, "no message came from rank 1"),
    "another tag": (
        lambda it: it.send(1, tag=2) if it.rank == 0 else it.receive(0, tag=1) if it.rank == 1 else None,
        STUCK,
        "no message came from rank 0 (tag 1)",
    ),
    "a message before a collective": (lambda it: it.receive(0) if it.rank == 1 else None, STUCK, "rank 0 (tag 0)"),
    "two communicators in another order": (in_another_order, STUCK, "ranks wait in another communicator, too"),
}
"""By name: the program, a pattern of the report's first line, and what one of the others says. After its fault, each
rank comes to a barrier."""


if __name__ == "__main__":
    plain: Plain = ByMpi() if sys.argv[1] == "mpi" else ByTorch()
    plain.barrier()
    program, *_ = FAULTS[sys.argv[2]]
    program(plain)
    if program not in (begins_and_ends, ends_before_a_message):
        plain.barrier()
