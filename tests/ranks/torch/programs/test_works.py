"""Handles of torch's collectives on our group: futures, callbacks, errors, time limits, order."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mpicoll.communicator.engine.progress import SHORT
from mpicoll.errors import MessageError, StateError
from mpicoll.torch.private import CallbackWork
from mpicoll.torch.torch_calls import Handle
from mpicoll.torch.work import CollectiveWork, Complete
from tests.ranks.children import in_child
from tests.ranks.torch.programs.training import mlp, vectors


def test_a_forked_child_does_not_wait_for_its_parents_work() -> None:
    """The thread that carries it out is the parent's alone."""
    goes_on = threading.Event()

    def run() -> None:
        goes_on.wait()

    work = CollectiveWork(run, [])
    thread = threading.Thread(target=work.execute)
    thread.start()

    def check() -> None:
        handle = Handle(work)
        assert handle.is_completed()
        assert not handle.is_success()
        for ask in (handle.wait, handle.get_future, work.get_future):
            with pytest.raises(StateError, match="this collective cannot be waited for: this process was forked"):
                ask()

    in_child(check)
    goes_on.set()
    thread.join()
    assert work.wait()
    in_child(work.wait)


def test_what_cpp_gets_of_a_collective_that_is_complete_at_once() -> None:
    """It asks for the future of its own class, and may never wait."""
    handle = Handle(Complete([torch.ones(2)]))
    future = CallbackWork.get_future(handle)
    assert future.done()
    assert [x.tolist() for x in future.value()] == [[1.0, 1.0]]
    assert handle.wait(timedelta(seconds=1))
    assert CallbackWork.wait(handle)


def test_a_failure_that_is_waited_for_while_it_is_handed_on_counts_as_seen() -> None:
    """A failure that the program has not seen ends the job when the program ends."""
    seen = threading.Event()

    class Observed(CollectiveWork):
        """The thread that carries it out reads this, and then waits until the program has seen the failure."""

        @property
        def failed_unseen(self) -> bool:
            unseen: bool = self._unseen
            if threading.current_thread() is settler:
                seen.wait(10)
            return unseen

        @failed_unseen.setter
        def failed_unseen(self, unseen: bool) -> None:
            self._unseen = unseen

    def fail() -> None:
        raise MessageError("in the collective")

    settler = threading.Thread(target=lambda: work.execute())
    work = Observed(fail, [])
    handle = Handle(work)
    settler.start()
    with pytest.raises(MessageError, match="in the collective"):
        handle.wait()
    seen.set()
    settler.join()
    assert not work._unseen
    with pytest.raises(MessageError, match="in the collective"):
        handle.get_future().wait()


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


def test_who_waits_at_once_carries_it_out(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """To hand a short collective to the group's thread would take several times as long."""
    group: Any = dist.new_group()
    threads, execute = [], group.engine.execute

    def noted(plan: Any, operation: str) -> None:
        threads.append(threading.current_thread())
        execute(plan, operation)

    monkeypatch.setattr(group.engine, "execute", noted)
    monkeypatch.setattr(group.progress, "nap", 60.0)
    short, long = torch.ones(3), torch.ones(SHORT)

    def twice(x: torch.Tensor) -> None:
        works = [dist.all_reduce(x, group=group, async_op=True) for _ in range(2)]
        works[1].wait()
        assert x[0].item() == size**2
        works[0].wait()

    twice(short)
    dist.all_reduce(short, group=group, async_op=True)
    dist.barrier(group)
    assert short[0].item() == size**3
    assert {*threads} == {threading.main_thread()}
    twice(long)  # which the thread may carry out, and then what comes while it is awake


def test_a_short_one_completes_though_nobody_asks(size: int) -> None:
    x = torch.ones(3)
    for _ in range(3):
        work = dist.all_reduce(x, async_op=True)
        deadline = time.monotonic() + 30
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.02)  # the thread falls asleep meanwhile
        assert work.is_completed()
    assert x[0].item() == size**3


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


@pytest.mark.parametrize("functional", [False, True], ids=["all_reduce", "functional"])
def test_a_collective_before_a_message(functional: bool, rank: int, size: int) -> None:
    """Rank 1 joins the collective only when it has rank 0's message, which rank 0 sends after starting it."""
    operators = torch.ops._c10d_functional
    x = torch.ones(1)
    if rank == 1:
        dist.recv(torch.empty(1), 0)
    if functional:
        started = operators.all_reduce(x, "sum", dist.group.WORLD.group_name)
    else:
        work = dist.all_reduce(x, async_op=True)
    if rank == 0 and size > 1:
        dist.send(torch.ones(1), 1)
    if functional:
        x = operators.wait_tensor(started)
    else:
        work.wait()
    assert x.item() == size


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
        dropped = dist.all_reduce(x, group=group, async_op=True)
        with pytest.raises(MessageError, match="network is down"):
            dist.destroy_process_group(group)  # nobody has waited for this one
    assert dropped.exception() is not None
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


def test_sequence_numbers() -> None:
    """It counts the collectives called. Ranks whose numbers differ have not called the same collectives."""
    g: Any = dist.group.WORLD
    before = g._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert g._get_sequence_number_for_group() == before + 2
    g._set_sequence_number_for_group()
    assert g._get_sequence_number_for_group() == 0
