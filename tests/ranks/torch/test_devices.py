"""Tensors of a simulated device, through the whole of mpicoll.torch: right values, and mistakes and failures."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch

from mpicoll.errors import ArgumentError, DeviceError, DeviceFailure, StateError, TimeoutError
from tests.devices.tensors import SimulatedGpu, values
from tests.ranks.torch.api import dist
from tests.ranks.torch.cases import FUNCTIONS, Case, Group, run

ASYNC = ("none", "all", "some")

pytestmark = [pytest.mark.processes, pytest.mark.first_mpi]


@pytest.mark.slow
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


def test_a_call_does_not_wait_for_the_caller_s_queue(gpu: SimulatedGpu) -> None:
    """An asynchronous call returns while what comes before it is still on its way, and so does the Work's answer."""
    x, held = gpu.tensor([1.0]), held_up(gpu)
    work = dist.all_reduce(x, async_op=True)
    assert not work.is_completed()
    with pytest.raises(TimeoutError):
        work.wait(timedelta(milliseconds=20))
    held.set()
    assert work.wait()
    assert values(x) == [dist.get_world_size()]
    assert work.is_completed()


def held_up(gpu: SimulatedGpu) -> threading.Event:
    """Hold a device's current queue up until this event is set."""
    event = threading.Event()
    gpu.current().hand_in("kernel", event.wait, 0)
    return event


def test_work_after_a_call_does_not_hold_it_up(gpu: SimulatedGpu) -> None:
    """Nor does the Work wait for what the caller has queued later: it waits for an event."""
    x = gpu.tensor([1.0])
    work = dist.all_reduce(x, async_op=True)
    doubled = work.get_future().then(lambda done: values(done.value()[0] * 2))
    held = held_up(gpu)
    with gpu.using(gpu.new_stream()):
        work.wait()
        assert values(x) == [dist.get_world_size()]
    held.set()
    assert doubled.wait() == [2 * dist.get_world_size()]


@pytest.mark.slow
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
    gpu.current().synchronize()  # memory is given back in the queue's turn
    assert gpu.allocations <= 4  # what the group keeps


def test_messages(gpu: SimulatedGpu, rank: int, size: int) -> None:
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


@pytest.mark.parametrize("where", ["another device", "the host"])
def test_tensors_on_two_devices(gpu: SimulatedGpu, where: str) -> None:
    """The rank at fault raises, nothing moves, and the group can be used."""
    size, there = dist.get_world_size(), SimulatedGpu()

    def other(n: int) -> torch.Tensor:
        return there.tensor([5.0] * n) if where == "another device" else torch.full((n,), 5.0)

    x, y, ys = gpu.tensor([1.0] * 2 * size), other(2 * size), [other(2) for _ in range(size)]
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: dist.all_gather(ys, x[:2]), "all_gather: tensor_list[0]"),
        (lambda: dist.reduce_scatter(x[:2], ys), "reduce_scatter: input_list[0]"),
        (lambda: dist.all_gather_into_tensor(y, x[:2]), "all_gather_into_tensor: output_tensor"),
        (lambda: dist.reduce_scatter_tensor(ys[0], x), "reduce_scatter_tensor: output"),
        (lambda: dist.all_to_all_single(y, x), "all_to_all_single: output"),
    ]
    for call, words in mistakes:
        with pytest.raises(DeviceError) as caught:
            call()
        assert str(caught.value).startswith(words)
        assert gpu.name in caught.value.expected
    for each in (y, *ys):
        assert set(values(each)) == {5.0}
    dist.all_reduce(x)
    assert values(x) == [size] * 2 * size


# -- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("async_op", [False, True])
def test_a_stream_that_captures_a_graph(gpu: SimulatedGpu, async_op: bool) -> None:
    """The call is refused before data moves, and so is a wait. A refused call does not count: other ranks may be
    refused before they begin it. The group can be used afterwards."""
    x, recorder = gpu.tensor([1.0]), dist.group.WORLD.engine.recorder
    pending = dist.all_reduce(x, async_op=True)
    while not async_op and not pending.is_completed():
        pass
    begun = recorder.begun
    gpu.capturing = threading.get_ident()
    with pytest.raises(StateError, match=f"{gpu.name}: the current stream is capturing"):
        dist.all_reduce(x, async_op=async_op)
    assert async_op or recorder.begun == begun
    with pytest.raises(StateError, match=f"{gpu.name}: the current stream is capturing"):
        pending.wait()
    gpu.capturing = 0
    pending.wait()
    dist.all_reduce(x)
    assert values(x) == [dist.get_world_size() ** 2]


@pytest.mark.parametrize(("number", "waits"), [(1, True), (2, True), (2, False)])
def test_a_failure_at_the_end_is_not_lost(gpu: SimulatedGpu, number: int, waits: bool) -> None:
    """The copy of what goes out fails, or that of the result, when the collective itself is over. If nobody waits for
    it, the group's end raises it."""
    group, x = dist.new_group(), gpu.tensor([1.0])
    values(x)
    gpu.fail("copy", number)
    work = dist.all_reduce(x, group=group, async_op=True)
    if not waits:
        with pytest.raises(DeviceFailure, match="a copy of 4 bytes failed"):
            dist.destroy_process_group(group)
    while not work.is_completed():  # it does not raise
        pass
    assert not work.is_success()
    if waits:
        with pytest.raises(DeviceFailure, match="a copy of 4 bytes failed"):
            work.wait()
        assert isinstance(work.exception(), DeviceFailure)


# -- a group's own device ---------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("device_id", ["cuda:0", True, -1, 1.0, torch.device("cuda"), torch.device("meta")])
def test_no_device(device_id: Any) -> None:
    with pytest.raises(ArgumentError, match="new_group: device_id: expected a CUDA device with an index, or the index"):
        dist.new_group(device_id=device_id)


def test_groups_have_the_device_of_the_default_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist.group.WORLD, "device", torch.device("cuda", 3))
    assert dist.new_group().device == torch.device("cuda", 3)
    assert dist.new_group(device_id=3).device == torch.device("cuda", 3)
    with pytest.raises(ArgumentError, match="device_id: expected cuda:3, the default group's; given cuda:1"):
        dist.new_group(device_id=torch.device("cuda", 1))
