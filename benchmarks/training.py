"""How long does a step of training take over gloo and over mpicoll: DDP, FSDP2, and pipelines?

    mpicoll run -n 2 benchmarks/training.py [--busy 2]

One job makes a group of each backend, and a model for each of them. The backends take turns in a changing order. A
turn's time is that of the slowest rank. The table shows the medians of the turns, in ms a step, and that of how many
times as long gloo's turn takes as mpicoll's next to it.

`--busy N` starts N processes that compute all the time. Then the ranks wait for each other most of the time, and what a
waiting rank does with its core decides.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from node import job  # type: ignore[import-not-found]  # beside this file
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel

WIDTHS = 64, 256, 1024
"""Of a model's eight layers: what they compute in takes 0.1, 1 and 10 ms or so."""
LAYERS, BATCH, MICROBATCHES = 8, 32, 8
TURNS, SECONDS = 7, 0.5
"""Of each backend, and how long a turn lasts."""

Step = Callable[[], object]


def layers(width: int, count: int = LAYERS) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(count)))


def whole(wrap: Callable[[nn.Sequential, Any], nn.Module], width: int, group: Any) -> Step:
    """A step of a model that each rank calls as a whole."""
    model = wrap(layers(width), group)
    optimizer, x = torch.optim.SGD(model.parameters(), 1e-3), torch.ones(BATCH, width)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ddp(model: nn.Sequential, group: Any) -> nn.Module:
    return DistributedDataParallel(model, process_group=group)


def fsdp(model: nn.Sequential, group: Any) -> nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def pipeline(schedule: Any, chunks: int, width: int, group: Any) -> Step:
    """A step of a model of which each rank has ``chunks`` parts."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count, cpu = chunks * size, torch.device("cpu")
    stages = [
        PipelineStage(layers(width, LAYERS // count), index, count, cpu, group=group)
        for index in range(rank, count, size)
    ]
    loss = nn.MSELoss()
    runs = schedule(stages if chunks > 1 else stages[0], MICROBATCHES, loss_fn=loss)
    given = (torch.ones(BATCH, width),) if rank == 0 else ()
    target = {"target": torch.ones(BATCH, width)} if rank == size - 1 else {}

    def step() -> None:
        runs.step(*given, **target)
        for stage in stages:
            stage.submod.zero_grad()

    return step


WAYS: dict[str, Callable[[int, Any], Step]] = {
    "DDP": partial(whole, ddp),
    "FSDP2": partial(whole, fsdp),
    "GPipe": partial(pipeline, ScheduleGPipe, 1),
    "1F1B": partial(pipeline, Schedule1F1B, 1),
    "interleaved 1F1B": partial(pipeline, ScheduleInterleaved1F1B, 2),
}


def turn(comm: Any, step: Step, count: int) -> float:
    """Seconds a step, on the slowest rank."""
    comm.barrier()
    start = perf_counter()
    for _ in range(count):
        step()
    return float(comm.allreduce_object((perf_counter() - start) / count, op="max"))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--busy", type=int, default=0, metavar="N")
    with job(p.parse_args().busy) as (comm, about):
        groups = {"gloo": dist.group.WORLD, "mpicoll": dist.new_group(backend="mpicoll")}
        for name, way in WAYS.items():
            for width in WIDTHS:
                steps = {backend: way(width, group) for backend, group in groups.items()}
                for count in (1, 3):  # the first step takes longer
                    longest = max(turn(comm, step, count) for step in steps.values())
                count = max(2, int(SECONDS / longest))
                times: dict[str, list[float]] = {backend: [] for backend in steps}
                for i in range(TURNS):
                    for backend in [*steps][:: 1 if i % 2 else -1]:
                        times[backend].append(turn(comm, steps[backend], count))
                if comm.rank == 0:
                    cells = (f"{backend} {statistics.median(each) * 1e3:8.2f}" for backend, each in times.items())
                    ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
                    print(f"{name:18s}{width:5d} ", "  ".join(cells), f"  {ratio:6.2f} times", flush=True)
        if comm.rank == 0:
            print(f"# {about}")


if __name__ == "__main__":
    main()
