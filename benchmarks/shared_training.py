"""How much faster does torch train where its buffers lie in memory that the ranks share?

    mpicoll run -n 2 benchmarks/shared_training.py

Three ways take turns: gloo, mpicoll with buffers in ordinary memory, and mpicoll with buffers in memory that the ranks
share. First come collectives of 25 MB, as DDP and FSDP2 make them, and all-reduces of bfloat16, whose figures are to be
compared with those of float32 for each byte. Then come whole steps of DDP and of FSDP2, and of their model alone, which
has 25 MB of parameters. The figures are medians in milliseconds, of the slowest rank.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mpicoll.torch
from mpicoll.machine.linux import cpu_name
from mpicoll.machine.mpi_library import library

WAYS = "gloo", "mpicoll", "shared"
WIDTH, LAYERS, BATCH = 1250, 4, 16
"""The model has 25 MB of parameters: four square layers."""
ROUNDS, UNTIMED, TIMED = 8, 2, 5
"""The turns of each way, and in each of them the calls that do not count, and the calls that count."""


@dataclass
class Line:
    """What is measured, and its times by its way, in milliseconds."""

    name: str
    calls: dict[str, Callable[[], object]]
    times: dict[str, list[float]] = field(default_factory=dict)

    def turn(self, way: str) -> None:
        """Make some calls, and keep the times of the slowest rank."""
        times = np.empty(UNTIMED + TIMED)
        for i in range(len(times)):
            MPI.COMM_WORLD.Barrier()
            start = perf_counter()
            self.calls[way]()
            times[i] = perf_counter() - start
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
        self.times.setdefault(way, []).extend(1e3 * times[UNTIMED:])


def collective(name: str, groups: dict[str, Any], make: Callable[[Any, Any], Callable[[], object]]) -> Line:
    """``make`` is given a way's group and what makes its tensors."""

    def ordinary(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype)

    def shared(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return mpicoll.torch.empty(count, dtype=dtype).zero_()

    return Line(name, {way: make(group, shared if way == "shared" else ordinary) for way, group in groups.items()})


def collectives(groups: dict[str, Any]) -> list[Line]:
    """Of 25 MB, and of 16 MiB in two dtypes."""
    whole = WIDTH**2 * LAYERS
    part = whole // dist.get_world_size()

    def all_reduce(count: int, dtype: torch.dtype) -> Callable[[Any, Any], Callable[[], object]]:
        def make(group: Any, empty: Any) -> Callable[[], object]:
            x = empty(count, dtype)
            return lambda: dist.all_reduce(x, group=group)

        return make

    def all_gather(group: Any, empty: Any) -> Callable[[], object]:
        x, out = empty(part), empty(part * dist.get_world_size())
        return lambda: dist.all_gather_into_tensor(out, x, group=group)

    def reduce_scatter(group: Any, empty: Any) -> Callable[[], object]:
        x, out = empty(part * dist.get_world_size()), empty(part)
        return lambda: dist.reduce_scatter_tensor(out, x, group=group)

    return [
        collective("all_reduce, 25 MB", groups, all_reduce(whole, torch.float32)),
        collective("all_gather_into_tensor, 25 MB", groups, all_gather),
        collective("reduce_scatter_tensor, 25 MB", groups, reduce_scatter),
        collective("all_reduce, 16 MiB of float32", groups, all_reduce(4 << 20, torch.float32)),
        collective("all_reduce, 16 MiB of bfloat16", groups, all_reduce(8 << 20, torch.bfloat16)),
    ]


def step_of(model: nn.Module, parameters: Any) -> Callable[[], object]:
    """A step of training."""
    data = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    optimizer = torch.optim.SGD(parameters, lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    for _ in range(4):  # DDP makes its buckets anew after the first one
        step()
    return step


def steps(groups: dict[str, Any]) -> list[Line]:
    """Of DDP and of FSDP2, and the model's own."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))

    def ddp(way: str) -> Callable[[], object]:
        made = DistributedDataParallel(copy.deepcopy(model), process_group=groups[way])
        return step_of(made, made.parameters())

    def fsdp(way: str) -> Callable[[], object]:
        mesh, made = DeviceMesh.from_group(groups[way], "cpu"), copy.deepcopy(model)
        for layer in made:
            fully_shard(layer, mesh=mesh).set_allocate_memory_from_process_group_for_comm(way == "shared")
        fully_shard(made, mesh=mesh).set_allocate_memory_from_process_group_for_comm(way == "shared")
        return step_of(made, made.parameters())

    alone = copy.deepcopy(model)
    return [
        Line("a step of DDP", {way: ddp(way) for way in groups}),
        Line("a step of FSDP2", {way: fsdp(way) for way in groups}),
        Line("a step of the model alone", {"alone": step_of(alone, alone.parameters())}),
    ]


def groups_of() -> dict[str, Any]:
    """A group for each way. DDP's buckets move to shared memory in the last one alone."""
    os.environ["MPICOLL_SHARE"] = "off"
    groups = {"gloo": dist.new_group(backend="gloo"), "mpicoll": dist.new_group()}
    del os.environ["MPICOLL_SHARE"]
    return groups | {"shared": dist.new_group()}


def show(lines: Sequence[Line]) -> None:
    for line in lines:
        medians = {way: float(np.median(times)) for way, times in line.times.items()}
        shown = "".join(f"{medians[way]:10.2f}" if way in medians else " " * 10 for way in WAYS)
        if "shared" in medians:
            shown += "".join(f"{medians[way] / medians['shared']:12.2f}" for way in WAYS[:2])
        else:
            shown = f"{medians['alone']:10.2f}"
        print(f"{line.name:<32}{shown}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("mpicoll")
    groups = groups_of()
    lines = [*collectives(groups), *steps(groups)]
    for line in lines:
        for _ in range(ROUNDS):
            for way in line.calls:
                line.turn(way)
    if dist.get_rank() == 0:
        print(f"{library()}, {dist.get_world_size()} ranks, {cpu_name()}, torch {torch.__version__}")
        print(f"{'':32}" + "".join(f"{way:>10}" for way in WAYS) + "   times as fast as gloo, mpicoll")
        show(lines)
    dist.destroy_process_group()


main()
