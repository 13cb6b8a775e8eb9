"""The order of mpicoll.torch's calls among the work of a device, which is simulated and late.

No call waits for the device. So wherever the order is broken, old values are found."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.devices.tensors import SimulatedGpu
from tests.ranks.torch.api import dist

SEED = int(os.environ.get("MPICOLL_SEED", "1"))

pytestmark = [pytest.mark.processes, pytest.mark.first_mpi]


class Program:
    """Random calls, the same on all ranks, in two groups and on three queues. Each works on tensors that are written
    late. Its result is copied and overwritten when it was waited for."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu, self.random = gpu, np.random.default_rng(SEED)
        self.groups = [None, dist.new_group()]
        self.queues = [gpu.current(), gpu.new_stream(), gpu.new_stream()]
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def three(self) -> list[Callable[[], bool]]:
        """Three calls are under way, and are finished in any order."""
        started = [self.call() for _ in range(3)]
        return [self.finish(*started[i]) for i in self.random.permutation(3)]

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

        def look(_keep: Any = results) -> bool:  # as a program must that uses a tensor on another queue than its own
            with self.gpu.using(queue):
                return all(np.array_equal(x.cpu().numpy(), e) for x, e in zip(kept, expected, strict=True))

        return look


@pytest.mark.slow
def test_random_calls(gpu: SimulatedGpu) -> None:
    print(f"MPICOLL_SEED={SEED}")
    program = Program(gpu)
    for _ in range(50 if dist.get_world_size() < 3 else 10):
        looks = [look for _ in range(4) for look in program.three()]  # at the results of twelve calls
        assert all(look() for look in looks)
