"""Programs of torch.distributed, started by torchrun: ``plain_torch.py NAME``. They run over NCCL where a GPU is."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from tests.processes import memory

OVER_NCCL = (
    "legal", "ended", "split", "functional_sum", "inference", "group_under_if", "other_group", "destroyed", "groups",
    "each_receives_first",
)  # fmt: skip
"""What was tried over NCCL."""
name = sys.argv[1]
backend = "nccl" if torch.cuda.is_available() and name in OVER_NCCL else "gloo"
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
if backend == "nccl":
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")
CALLS, MOST_GROWTH = 50, 32 << 20
"""Of each kind of call; and bytes that a rank may have more at the end than after a fifth of them."""
x = torch.ones(4)
part = dist.new_group([*range(size)] if rank else None)  # which is the same


def step(model: torch.nn.Module) -> None:
    model(torch.ones(2, 3)).sum().backward()


def summed(given: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = functional.all_reduce(given, "sum", [*range(size)])
    return result


def legal() -> None:
    """All kinds of calls, of which nothing may be said."""
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    right, left = (rank + 1) % size, (rank - 1) % size
    for number in range(CALLS):
        if number == CALLS // 5:
            before = memory()
        step(model)
        work = dist.all_reduce(x, async_op=True)
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX, group=part)
        work.wait()
        dist.all_gather([torch.empty(2) for _ in range(size)], torch.ones(2))
        dist.broadcast(x, 0)
        dist.all_gather_object([None] * size, {"rank": rank})
        dist.gather(x, [torch.empty(4) for _ in range(size)] if rank == 0 else None)
        dist.scatter(x, [torch.ones(4) for _ in range(size)] if rank == 0 else None)
        dist.barrier()
        for one in functional.all_reduce_coalesced(
            [summed(x), functional.broadcast(x, 1, [*range(size)])], "max", part
        ):
            one.sum()
        with dist._coalescing_manager(part, async_ops=True) as manager:
            for _ in range(3):
                dist.all_gather_into_tensor(torch.empty(4 * size), x, part)
        manager.wait()
        objects = [rank, "x" * rank]
        dist.broadcast_object_list(objects, 0)
        dist.gather_object(objects, [None] * size if rank == 0 else None)
        dist.scatter_object_list(objects, [*range(size)] if rank == 0 else None)
        # An all-to-all of uneven parts, which differ from rank to rank.
        counts = [1 + (rank + other) % 2 for other in range(size)]
        dist.all_to_all_single(torch.empty(sum(counts)), torch.ones(sum(counts)), counts, counts)
        got = torch.empty(5)
        for each in dist.batch_isend_irecv([dist.P2POp(dist.isend, got + 1, right), dist.P2POp(dist.irecv, got, left)]):
            each.wait()
    assert memory() - before < MOST_GROWTH
    torch.compile(lambda given: summed(given) + 1, backend="eager")(x)
    before = memory()  # the compiler's imports take almost as much
    for _ in range(2):
        alone = dist.new_group([rank], use_local_synchronization=True)  # each rank makes one of its own
        dist.all_reduce(x, group=alone)
        dist.destroy_process_group(alone)
    assert memory() - before < MOST_GROWTH
    dist.destroy_process_group()
    again()
    print(f"rank {rank} is done", flush=True)


def again() -> None:
    """A default group of the same name, over a store of its own: torch cannot use the last one's again."""
    file = Path(tempfile.gettempdir(), f"plain_torch-{os.environ['MASTER_PORT']}-{os.getppid()}")
    dist.init_process_group(backend, init_method=file.as_uri(), rank=rank, world_size=size)
    dist.all_reduce(x)
    dist.destroy_process_group()


def ended() -> None:
    """A rank has a batch more than the other, in DDP, whose calls are made in C++."""
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    for _ in range(3 + rank):
        step(model)


def functional_sum() -> None:
    """Who needs its result waits for a tensor, not for a Work."""
    if rank == 0:
        summed(x).sum()
    else:
        dist.recv(x, 0, tag=3)


def inference() -> None:
    with torch.inference_mode():
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
        dist.barrier()


def group_under_if() -> None:
    if rank == 0:
        dist.new_group([0, 1])
    dist.barrier()


def other_group() -> None:
    dist.new_group([0, 1] if rank else [0])
    dist.barrier()


def destroyed() -> None:
    """A rank gives a group up, in which the other one makes one more call."""
    dist.destroy_process_group(part) if rank == 0 else dist.all_reduce(x, group=part)
    dist.barrier()


def split() -> None:
    """In a group that torch's ``split_group`` makes. It refuses to over gloo, unless it is asked so."""
    whole: Any = dist.distributed_c10d._get_default_group()
    faulthandler.dump_traceback_later(10, exit=True)  # over gloo, it often hangs by itself on a busy machine
    made = whole.split_group([*range(size)], timeout=timedelta(seconds=60), group_name="split")
    faulthandler.cancel_dump_traceback_later()
    made.allreduce([x]).wait()
    made.broadcast(x, rank).wait()
    made.barrier().wait()


def groups() -> None:
    other = dist.new_group([*range(size)])
    for each in (other, part) if rank else (part, other):
        dist.all_reduce(x, group=each)


def handles() -> None:
    try:
        if rank == 1:
            raise ValueError("the cause")
        dist.all_reduce(x)
    finally:
        dist.broadcast(x, 0)


def the_program_ends() -> None:
    if rank == 1:
        dist.all_reduce(x, async_op=True).wait()


def the_sender_ends() -> None:
    if rank == 0:
        dist.recv(x, 1)


BEFORE_A_BARRIER: dict[str, Callable[[], object]] = {
    "other_collective": lambda: dist.broadcast(x, 0) if rank else dist.barrier(),
    "other_length": lambda: dist.all_reduce(torch.ones(8 if rank else 4)),
    "other_dtype": lambda: dist.all_reduce(torch.ones(4) if rank else torch.ones(2, dtype=torch.float64)),
    "other_root": lambda: dist.broadcast(x, rank),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP) if rank else None,
    "busy": lambda: time.sleep(600) if rank else None,
    "each_receives_first": lambda: dist.recv(x, 1 - rank, tag=3),
    "other_tag": lambda: dist.recv(x, 0, tag=1) if rank else dist.send(torch.ones(1 << 22), 1, tag=2),
    "message_before_a_barrier": lambda: dist.recv(x, 0) if rank else None,
}
if name in BEFORE_A_BARRIER:
    BEFORE_A_BARRIER[name]()
    dist.barrier()
else:
    globals()[name]()
