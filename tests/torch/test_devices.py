"""Tensors of a simulated device, through the whole of mpicoll.torch: right values, in the order of the queues.

No call waits for the device, and it is late. So wherever the order is broken, old values are found: the last tests
break it on purpose, and find them.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch

from mpicoll.devices.simulated_queue import Costs
from mpicoll.errors import ArgumentError, DeviceError, DeviceFailure, StateError, TimeoutError
from mpicoll.routes.devices import staged
from mpicoll.torch.groups import turns
from mpicoll.torch.groups.work import CollectiveWork
from tests.devices.tensors import SimulatedGpu, SimulatedTensor, values
from tests.torch.api import dist, ours_alone
from tests.torch.cases import FUNCTIONS, Case, Group, run

SEED = int(os.environ.get("MPICOLL_SEED", "1"))
ASYNC = ("none", "all", "some")
TOGETHER = 12
"""Calls between two looks at their results."""

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "PIECE", 64)


@pytest.fixture
def gpu() -> SimulatedGpu:
    return SimulatedGpu(Costs(delay=1e-3))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function(groups: list[Group], gpu: SimulatedGpu, function: str) -> None:
    in_place = function in ("broadcast", "all_reduce", "reduce")
    for i, dtype in enumerate(("float32", "bfloat16", "int64")):
        for layout in ("contiguous", "strided", "transposed", "offset"):
            case = Case(
                function, dtype, "sum", 0, (2, 3), layout if in_place else "transposed", layout, ASYNC[i], seed=i,
                device=gpu.name,
            )  # fmt: skip
            for g in groups:
                run(case, g)
    run(Case(function, "float32", "max", 0, (70,), async_ranks="some", device=gpu.name), groups[0])


class Program:
    """Random calls, the same on all ranks, in two groups and on three queues. Each works on tensors that are written
    late. Its result is copied and overwritten when it was waited for."""

    def __init__(self, gpu: SimulatedGpu, seed: int) -> None:
        self.gpu, self.random = gpu, np.random.default_rng(seed)
        self.groups = [None, dist.new_group()]
        self.queues = [gpu.current(), gpu.queue(), gpu.queue()]
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def wrong_results(self, calls: int) -> int:
        wrong = 0
        for _ in range(0, calls, TOGETHER):
            looks = []
            for _ in range(TOGETHER // 3):
                started = [self.call() for _ in range(3)]
                looks += [self.finish(*started[i]) for i in self.random.permutation(3)]
            wrong += sum(not look() for look in looks)
        return wrong

    def call(self) -> tuple[Any, list[torch.Tensor], list[Any], Any]:
        """Begin a call: its Work, its results, what these must be, and the queue on which it was made."""
        random, rank, size = self.random, self.rank, self.size
        n, async_op = int(random.integers(1, 40)), bool(random.random() < 0.7)
        inputs = random.integers(-9, 9, (size, size, n)).astype(np.float32)
        queue, group = self.queues[random.integers(3)], self.groups[random.integers(2)]
        total = inputs.sum(0)
        with self.gpu.using(queue):
            x = self.gpu.tensor(np.zeros((size, n), np.float32))
            x.copy_(self.gpu.tensor(inputs[rank]))
            match random.integers(4):
                case 0:
                    work = dist.all_reduce(x, group=group, async_op=async_op)
                    return work, [x], [total], queue
                case 1:
                    outs = [torch.empty_like(x) for _ in range(size)]
                    work = dist.all_gather(outs, x, group=group, async_op=async_op)
                    return work, outs, list(inputs), queue
                case 2:
                    out = x.new_zeros(n)
                    work = dist.reduce_scatter(out, list(x), group=group, async_op=async_op)
                    return work, [out], [total[rank]], queue
                case _:
                    out = torch.empty_like(x)
                    work = dist.all_to_all_single(out, x, group=group, async_op=async_op)
                    return work, [out], [inputs[:, rank]], queue

    def finish(self, work: Any, results: list[torch.Tensor], expected: list[Any], queue: Any) -> Callable[[], bool]:
        """Wait on any queue, and overwrite the results there. The function says whether they were right."""
        if work is not None and self.random.random() < 0.5:
            queue = self.queues[self.random.integers(3)]
        with self.gpu.using(queue):
            if work is not None:
                work.wait()
            kept = [x.clone() for x in results]
            for x in results:
                x.fill_(77)

        def look() -> bool:
            with self.gpu.using(queue):
                return all(np.array_equal(x.cpu().numpy(), e) for x, e in zip(kept, expected, strict=True))

        return look


def test_random_calls(gpu: SimulatedGpu) -> None:
    print(f"MPICOLL_SEED={SEED}")
    assert Program(gpu, SEED).wrong_results(600 if dist.get_world_size() < 3 else 120) == 0


def test_a_call_does_not_wait_for_the_caller_s_queue(gpu: SimulatedGpu) -> None:
    """An asynchronous call returns while what comes before it is still on its way, and so does the Work's answer."""
    x, held = gpu.tensor([1.0]), HeldUp(gpu)
    work = dist.all_reduce(x, async_op=True)
    assert not work.is_completed()
    with pytest.raises(TimeoutError):
        work.wait(timedelta(milliseconds=20))
    held.go_on()
    assert work.wait()
    assert values(x) == [dist.get_world_size()]
    assert work.is_completed()


class HeldUp:
    """Work of a device's current queue that ends when it may."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._event = threading.Event()
        gpu.current().hand_in("kernel", self._event.wait, 0)

    def go_on(self) -> None:
        self._event.set()


def test_work_after_a_call_does_not_hold_it_up(gpu: SimulatedGpu) -> None:
    """Nor does the Work wait for what the caller has queued later: it waits for an event."""
    x = gpu.tensor([1.0])
    work = dist.all_reduce(x, async_op=True)
    held = HeldUp(gpu)
    with gpu.using(gpu.queue()):
        work.wait()
        assert values(x) == [dist.get_world_size()]
    held.go_on()


def test_a_synchronous_call_comes_after_pending_ones(gpu: SimulatedGpu) -> None:
    size = dist.get_world_size()
    for _ in range(20):
        x = gpu.tensor(np.ones(30, np.float32))
        works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
        dist.all_reduce(x)
        assert values(x) == [size**4] * 30
        assert all(work.is_completed() for work in works)


def test_tensors_are_dropped_at_once(gpu: SimulatedGpu) -> None:
    """A tensor that the program drops while its call is pending is in nobody's hands until the call is over."""
    size, others = dist.get_world_size(), []
    for i in range(30):
        outs = [gpu.tensor(np.zeros(30, np.float32)) for _ in range(size)]
        works = [dist.all_gather(outs, gpu.tensor(np.full(30, i, np.float32)), async_op=True)]
        works.append(dist.all_reduce(gpu.tensor(np.full(30, 5, np.float32)), async_op=True))
        del works[1 if i % 2 else 0]  # nobody waits for it
        others.append(gpu.tensor(np.full(30, -1, np.float32)))  # may get memory that was given back
        works[0].wait()
        if i % 2:
            assert [values(x) for x in outs] == [[i] * 30] * size
    dist.barrier()
    assert all(values(x) == [-1] * 30 for x in others)
    del outs, works, others
    gc.collect()
    dist.barrier()
    assert gpu.allocations <= 4  # what the group keeps


def test_futures(gpu: SimulatedGpu) -> None:
    x = gpu.tensor([1.0, 2.0])
    size = dist.get_world_size()
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda done: values(done.value()[0])).wait()
    assert doubled == [size, 2.0 * size]


def test_messages(gpu: SimulatedGpu) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        pytest.skip("there is nobody to send to")
    for n in (3, 20_000):
        x, y = gpu.tensor(np.zeros(n, np.float32)), gpu.tensor(np.zeros(n, np.float32))
        x.fill_(rank + 1)
        received = dist.irecv(y, (rank - 1) % size)
        dist.isend(x, (rank + 1) % size).wait()
        x.fill_(-1)
        received.wait()
        y.mul_(2)
        assert set(values(y)) == {2.0 * ((rank - 1) % size + 1)}


# -- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("async_op", [False, True])
def test_a_stream_that_captures_a_graph(gpu: SimulatedGpu, async_op: bool) -> None:
    """The call is refused before data moves, and so is a wait. The group can be used afterwards."""
    x = gpu.tensor([1.0])
    pending = dist.all_reduce(x, async_op=True)
    gpu.capturing = threading.get_ident()
    with pytest.raises(StateError, match=f"{gpu.name}: the current stream is capturing"):
        dist.all_reduce(x, async_op=async_op)
    with pytest.raises(StateError, match=f"{gpu.name}: the current stream is capturing"):
        pending.wait()
    gpu.capturing = 0
    pending.wait()
    dist.all_reduce(x)
    assert values(x) == [dist.get_world_size() ** 2]


def test_work_that_fails_on_all_ranks(gpu: SimulatedGpu) -> None:
    """The device fails at the copy of what goes out: the Work raises it, and the group's collectives are at an end."""
    group = dist.new_group()
    x = gpu.tensor([1.0])
    values(x)
    gpu.fail("copy", 1)
    work = dist.all_reduce(x, group=group, async_op=True)
    with pytest.raises(DeviceFailure, match="a copy of 4 bytes failed"):
        work.wait()
    assert not work.is_success()
    assert isinstance(work.exception(), DeviceFailure)


def test_a_failure_at_the_end_is_not_lost(gpu: SimulatedGpu) -> None:
    """The copy of the result fails, when the collective itself is over. Nobody waits: the group's end raises it."""
    group = dist.new_group()
    x = gpu.tensor([1.0])
    values(x)
    gpu.fail("copy", 2)
    work = dist.all_reduce(x, group=group, async_op=True)
    with pytest.raises(DeviceFailure, match="a copy of 4 bytes failed"):
        dist.destroy_process_group(group)
    assert not work.is_success()


# -- what breaks the order --------------------------------------------------------------------------------------------


def calls_do_not_wait_for_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def enter(self: turns.Turn) -> None:
        for device, queue in self._queues:
            self._stack.enter_context(device.using(queue))

    monkeypatch.setattr(turns.Turn, "__enter__", enter)


def callers_do_not_wait_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns.Turn, "follow", lambda self: None)


def the_end_is_taken_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: turns.Turn, run: Callable[[], None]) -> None:
        self._ended = [queue.record() for _, queue in self._queues]
        run()

    monkeypatch.setattr(turns.Turn, "take", take)


def lists_are_copied_on_another_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be if the group's thread did not make its queue the current one."""

    @contextmanager
    def using(self: SimulatedGpu, queue: Any) -> Iterator[None]:
        yield

    original = turns.Turn.__enter__

    def enter(self: turns.Turn) -> None:
        with monkeypatch.context() as m:
            m.setattr(SimulatedGpu, "using", using)
            original(self)

    monkeypatch.setattr(turns.Turn, "__enter__", enter)


BROKEN = [
    calls_do_not_wait_for_the_caller,
    callers_do_not_wait_for_the_end,
    the_end_is_taken_too_early,
    lists_are_copied_on_another_queue,
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.__name__)
def test_a_broken_order_is_found(gpu: SimulatedGpu, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    monkeypatch.setattr(gpu, "check", lambda place: None)  # memory that is used too late shows in the values
    program = Program(gpu, 5)
    found = 0
    for _ in range(25):
        wrong = torch.tensor([program.wrong_results(TOGETHER)])
        dist.all_reduce(wrong)
        found += int(wrong)
        if found:
            break
    assert found


def test_memory_that_is_given_back_too_early_is_found(gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def let_go(self: CollectiveWork) -> None:
        self._run = lambda: None
        self._result = []
        self.served.set()

    monkeypatch.setattr(CollectiveWork, "let_go", let_go)
    alone = [dist.new_group([r]) for r in range(dist.get_world_size())][dist.get_rank()]
    for _ in range(200):
        x: SimulatedTensor | None = gpu.tensor(np.ones(30, np.float32))
        work = dist.all_reduce(x, group=alone, async_op=True)
        x = None
        work.done.wait()
        found = [gpu.tensor(np.full(30, -1, np.float32)) for _ in range(2)]
        del work
        try:
            wrong = any(values(each) != [-1] * 30 for each in found)
            gpu.current().synchronize()
        except DeviceFailure:
            wrong = True
        if wrong or any(queue._failure for queue in gpu._queues):
            return
    pytest.fail("nothing was found")


# -- a group's own device ---------------------------------------------------------------------------------------------


@ours_alone("torch compares device_id with the GPUs that it sees")
def test_a_group_holds_tensors_to_its_device(gpu: SimulatedGpu) -> None:
    """The rank at fault raises, nothing moves, and the group can be used."""
    other, size = SimulatedGpu(), dist.get_world_size()
    group = dist.new_group(device_id=gpu.torch_device)
    mine, wrong, host = gpu.tensor([1.0]), other.tensor([1.0]), torch.ones(1)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: dist.all_reduce(wrong, group=group), "all_reduce: tensor"),
        (lambda: dist.all_reduce(wrong, group=group, async_op=True), "all_reduce: tensor"),
        (lambda: dist.broadcast(wrong, 0, group), "broadcast: tensor"),
        (lambda: dist.all_gather([wrong] * size, wrong, group), "all_gather: tensor"),
        (lambda: dist.all_gather_into_tensor(wrong, wrong, group), "all_gather_into_tensor: "),
        (lambda: dist.isend(wrong, 0, group), "isend: tensor"),
        (lambda: dist.irecv(wrong, 0, group), "irecv: tensor"),
    ]
    for call, words in calls[: 4 if size > 1 else None]:
        with pytest.raises(DeviceError, match=f"{words}.*expected memory of the host or of {gpu.name}, the device of"):
            call()
    for x in (mine, host):
        for async_op in (False, True):
            work = dist.all_reduce(x, group=group, async_op=async_op)
            if work is not None:
                work.wait()
        assert values(x) == [size**2]
    assert values(wrong) == [1]


@ours_alone("torch compares device_id with the GPUs that it sees")
@pytest.mark.parametrize("device_id", ["cuda:0", True, -1, 1.0, torch.device("cuda"), torch.device("meta")])
def test_no_device(device_id: Any) -> None:
    with pytest.raises(ArgumentError, match="new_group: device_id: expected a CUDA device with an index, or the index"):
        dist.new_group(device_id=device_id)


@ours_alone("torch compares device_id with the GPUs that it sees")
def test_groups_have_the_device_of_the_default_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist.group.WORLD, "device", torch.device("cuda", 3))
    assert dist.new_group().device == torch.device("cuda", 3)
    assert dist.new_group(device_id=3).device == torch.device("cuda", 3)
    with pytest.raises(ArgumentError, match="device_id: expected cuda:3, the default group's; given cuda:1"):
        dist.new_group(device_id=torch.device("cuda", 1))
