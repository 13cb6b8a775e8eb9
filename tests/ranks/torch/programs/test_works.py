"""Handles of torch's collectives on our group: futures, callbacks, errors, time limits, order."""

from __future__ import annotations

import gc
import time
import weakref
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mpicoll.errors import MessageError, StateError
from tests.ranks.children import in_child
from tests.ranks.torch.programs.training import mlp, vectors


@pytest.mark.mpi(min_size=2)
def test_a_forked_child_does_not_wait_for_its_parents_work(rank: int, size: int) -> None:
    """The thread that carries it out is the parent's alone."""
    x = torch.ones(1)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)

        def check() -> None:
            assert work.is_completed()
            assert not work.is_success()
            for ask in (work.wait, work.get_future):
                with pytest.raises(StateError, match="this collective cannot be waited for: this process was forked"):
                    ask()

        in_child(check)
        for other in range(1, size):
            dist.send(x, other)
    else:
        dist.recv(torch.empty(1), 0)
        work = dist.all_reduce(x, async_op=True)
    work.wait()
    in_child(work.wait)
    assert x.item() == size


def test_works_that_nobody_keeps(rank: int, size: int) -> None:
    """The program keeps neither the Work nor its tensors."""
    seen: list[float] = []
    for k in range(20):
        dist.all_reduce(torch.full((4,), float(k)), async_op=True).get_future().then(
            lambda f: seen.append(f.value()[0][0].item())
        )
        gc.collect(0)
    dist.barrier()
    assert seen == [float(k * size) for k in range(20)]


def test_a_wait_that_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler raises while the program's thread carries out what it waits for."""
    group: Any = dist.new_group()

    def interrupt(plan: Any, operation: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(group.engine, "execute", interrupt)
        patch.setattr(group.progress, "nap", 60.0)
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        with pytest.raises(KeyboardInterrupt):
            work.wait()
    with pytest.raises(StateError, match="wait: this collective ended midway"):
        work.wait()
    dist.destroy_process_group(group)


def test_tensors_are_let_go(rank: int) -> None:
    x = torch.ones(1000)
    work = dist.all_reduce(x, async_op=True)
    gone = weakref.ref(x), weakref.ref(work)
    work.wait()
    del x, work
    deadline = time.monotonic() + 30  # the thread that carried it out lets go of it just after it is complete
    while any(ref() is not None for ref in gone) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.001)
    assert [ref() for ref in gone] == [None, None]


def test_errors_reach_cpp(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    """DDP's reducer and the functional collectives wait in C++: they raise what the collective raised."""
    group = dist.new_group()
    ddp = DistributedDataParallel(mlp(), process_group=group)
    x, _ = vectors(0)
    ddp(x).sum().backward()

    def fail(plan: object, collective: str) -> None:
        raise MessageError("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(group.engine, "execute", fail)
        patch.setattr(group.engine, "calls", None)  # the kernel would carry it out
        with pytest.raises(MessageError, match="network is down"):
            ddp(x).sum().backward()
        started = torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name)
        with pytest.raises(MessageError, match="network is down"):
            torch.ops._c10d_functional.wait_tensor(started)
    dist.barrier()


@pytest.mark.skipif("timeout" not in signature(dist.barrier).parameters, reason=f"torch {torch.__version__} has not it")
def test_barrier_with_a_time_limit(rank: int, size: int) -> None:
    """Rank 0 comes when the others have given up."""
    if rank > 0:
        with pytest.raises(TimeoutError, match="not all ranks came within"):
            dist.barrier(timeout=timedelta(seconds=0.05))
        dist.send(torch.ones(1), 0)
    else:
        for other in range(1, size):
            dist.recv(torch.empty(1), other)
        dist.barrier()  # which completes theirs
    dist.barrier()
