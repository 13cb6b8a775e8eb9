"""How fast is a DistributedDataParallel step over gloo, mpicoll and NCCL, and how much communication does it hide?

    mpicoll run -n 2 benchmarks/ddp_step.py --json record.json
    python benchmarks/ddp_picture.py record.json picture.png

One job makes a process group of each backend, and a copy of the same model for each group. The backends take turns in a
changing order. On the slowest rank, the program times

- whole steps;
- the same steps under ``no_sync``, which is the computation;
- the all-reduces of the model's buckets alone, which is the communication.

The share of the communication that is hidden behind the computation is (computation + communication - step) /
communication. It is negative where the two slow each other down, for example on cores that they share.

mpicoll chooses between two ways, depending on how many cores a rank has. Either the backward pass waits for each of
DDP's all-reduces, so that nothing can be hidden, or it continues while a thread carries them out. The program also
forces each way: in line, without any thread, and on a thread that nothing waits for. It runs both once more on an
emulated slow wire. There every byte of a bucket takes in addition as long as on 10 Gb/s Ethernet, without using a core.

If a node has GPUs, all tensors are in GPU memory. The ranks take its GPUs in turns. If it has one for each rank, NCCL
is measured, too.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mpicoll import registration
from mpicoll.bench.session import Session, environment
from mpicoll.torch.work import CollectiveWork

LAYERS = 32
"""The number of square layers. A bucket holds one or more whole layers."""
WIRE = 8e-10
"""Seconds a byte, at 10 Gb/s."""
SLOW = ", 10 Gb/s"
IN_LINE, THREAD = ", in line", ", thread"
UNTIMED, TIMED, ROUNDS = 2, 4, 5
"""In each turn: the calls that do not count, and the calls that count. And the least number of turns."""


@dataclass
class Row:
    """One backend at one size: medians over the timed calls, in milliseconds, and the buckets in bytes."""

    backend: str
    gradient_mb: float
    bucket_mb: float
    buckets: list[int]
    step_ms: float
    computation_ms: float
    communication_ms: float
    hidden: float
    """The share of the communication that is hidden."""
    steps_ms: list[float] = field(repr=False)


class Trainee:
    """The model over one group. Without ``sync`` it trains without the other ranks."""

    def __init__(
        self, name: str, group: Any, model: nn.Module, data: torch.Tensor, bucket_mb: float, sync: bool = True
    ):
        self.name, self.group, self.data = name, group, data
        self.ddp = DistributedDataParallel(copy.deepcopy(model), process_group=group, bucket_cap_mb=bucket_mb)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1e-4)
        self.scope = nullcontext if sync else self.ddp.no_sync
        self.times: dict[str, list[float]] = {"step": [], "communicate": []}
        for _ in range(3):  # DDP rebuilds its buckets after the first step
            self.step()
        logged: dict[str, Any] = self.ddp._get_ddp_logging_data()
        sizes = str(logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"])
        self.buckets = [int(n) for n in sizes.split(",")]
        self.tensors = [torch.full((n // 4,), 0.0, device=data.device) for n in self.buckets]

    def step(self) -> None:
        self.optimizer.zero_grad()
        with self.scope():
            self.ddp(self.data).square().mean().backward()
        self.optimizer.step()

    def communicate(self) -> None:
        for work in [dist.all_reduce(t, group=self.group, async_op=True) for t in self.tensors]:
            work.wait()

    def turn(self, what: str) -> None:
        """Make some calls, and keep the times of the slowest rank."""
        call: Callable[[], None] = getattr(self, what)
        times = np.empty(UNTIMED + TIMED)
        for i in range(len(times)):
            MPI.COMM_WORLD.Barrier()
            start = perf_counter()
            call()
            if self.data.is_cuda:
                torch.cuda.synchronize()
            times[i] = perf_counter() - start
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
        self.times[what] += (1e3 * times[UNTIMED:]).tolist()

    def median(self, what: str) -> float:
        return float(np.median(self.times[what]))

    def check(self, others: Trainee) -> None:
        """Check that all ranks' parameters are equal, and, up to rounding, equal to those of ``others``."""
        for mine, theirs in zip(self.ddp.parameters(), others.ddp.parameters(), strict=True):
            first = mine.detach().cpu().clone()
            MPI.COMM_WORLD.Bcast(first.numpy())
            if not torch.equal(first, mine.detach().cpu()):
                raise RuntimeError(f"{self.name}: parameters differ between ranks")
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


# -- groups -----------------------------------------------------------------------------------------------------------


def slow(group: Any) -> Any:
    """Make each long collective of ``group`` take :data:`WIRE` a byte longer, on the thread that carries it out."""
    do = group.in_turn

    def delayed(
        operation: str, run: Callable[[], None], result: Sequence[torch.Tensor], async_op: bool, *more: Any
    ) -> Any:
        def on_the_wire() -> None:
            run()
            sleep(WIRE * sum(t.nbytes for t in result))

        return do(operation, on_the_wire, result, async_op, *more)

    group.in_turn = delayed
    return group


def in_line(group: Any) -> Any:
    """Make the asynchronous collectives of ``group`` complete before their call returns."""
    go_through_in_turn(group)

    def do(operation: str, run: Callable[[], None], result: Sequence[torch.Tensor], async_op: bool, *more: Any) -> Any:
        work = CollectiveWork(run, list(result))
        work.execute()
        return work

    group.in_turn = do
    return group


def on_a_thread(group: Any) -> Any:
    """Let the worker thread of ``group`` carry out its asynchronous collectives, however few cores there are."""
    go_through_in_turn(group)
    return group


def go_through_in_turn(group: Any) -> None:
    """Let no collective of ``group`` be waited for by the reducer, or begun by the kernel: a slow wire replaces
    ``in_turn``."""
    group.reducer_waits, group.engine.calls = False, None


def device_of(node: MPI.Comm) -> torch.device:
    """One of the node's GPUs if it has some, else the CPU."""
    if not torch.cuda.device_count():
        return torch.device("cpu")
    torch.cuda.set_device(node.rank % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def groups_on(device: torch.device, node: MPI.Comm) -> dict[str, Any]:
    """A group for each line of the table. The others are compared with the first."""
    groups = {"gloo": dist.new_group(backend="gloo"), "mpicoll": dist.group.WORLD}
    if device.type == "cuda" and torch.cuda.device_count() >= node.size:
        groups["nccl"] = dist.new_group(backend="nccl")
    for name, way in ((IN_LINE, in_line), (THREAD, on_a_thread)):
        groups[f"mpicoll{name}"] = way(dist.new_group())
        groups[f"mpicoll{name}{SLOW}"] = slow(way(dist.new_group()))
    return groups


# -- measuring --------------------------------------------------------------------------------------------------------


def measured(
    groups: dict[str, Any], device: torch.device, megabytes: float, bucket_mb: float, batch: int, seconds: float
) -> list[Row]:
    """A row for each group, measured for about ``seconds``."""
    width = round((megabytes * 1e6 / 4 / LAYERS) ** 0.5)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(LAYERS))).to(device)
    data = torch.randn(batch, width, generator=torch.Generator().manual_seed(1 + dist.get_rank())).to(device)
    alone = Trainee("alone", dist.group.WORLD, model, data, bucket_mb, sync=False)
    lines = [Trainee(name, group, model, data, bucket_mb) for name, group in groups.items()]
    turns = [(alone, "step"), *((line, what) for line in lines for what in line.times)]
    order = np.random.default_rng(0)
    end = perf_counter() + seconds
    done = 0
    while done < ROUNDS or MPI.COMM_WORLD.bcast(perf_counter() < end):
        for i in order.permutation(len(turns)):
            line, what = turns[i]
            line.turn(what)
        done += 1
    for line in lines:
        line.check(lines[0])
    return [_row(line, alone.median("step"), width, bucket_mb) for line in lines]


def _row(line: Trainee, computation: float, width: int, bucket_mb: float) -> Row:
    step, communication = line.median("step"), line.median("communicate")
    return Row(
        backend=line.name,
        gradient_mb=round(4e-6 * LAYERS * width**2, 2),
        bucket_mb=bucket_mb,
        buckets=line.buckets,
        step_ms=round(step, 3),
        computation_ms=round(computation, 3),
        communication_ms=round(communication, 3),
        hidden=round((computation + communication - step) / communication, 3),
        steps_ms=[round(t, 3) for t in line.times["step"]],
    )


# -- what is shown ----------------------------------------------------------------------------------------------------

HEAD = f"{'MB':>6} {'bucket':>6} {'n':>3}  {'backend':<26}"
HEAD += f"{'step':>9} {'comp.':>8} {'comm.':>8} {'hidden':>7} {'steps/s':>8}"


def line_of(row: Row, first: Row) -> str:
    ratio = f"{first.step_ms / row.step_ms:5.2f}x {first.backend}" if SLOW not in row.backend else ""
    return (
        f"{row.gradient_mb:6.1f} {row.bucket_mb:6g} {len(row.buckets):3}  {row.backend:<26}{row.step_ms:9.2f} "
        f"{row.computation_ms:8.2f} {row.communication_ms:8.2f} {row.hidden:6.0%} {1e3 / row.step_ms:8.1f}  {ratio}"
    )


def write(rows: list[Row], path: Path, head: dict[str, Any]) -> None:
    """Write the record, one row a line."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    body = ",\n".join(json.dumps(asdict(row), separators=(",", ":")) for row in rows)
    path.write_text(f'{{\n{lines},\n"rows": [\n{body}\n]\n}}\n')


def arguments() -> argparse.Namespace:
    def numbers(text: str) -> list[float]:
        return [float(n) for n in text.split(",")]

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=numbers, default=[1, 5, 25, 100], help="MB of gradients (1,5,25,100)")
    parser.add_argument("--buckets", type=numbers, default=[1, 5, 25], help="MB of a bucket, at most (1,5,25)")
    parser.add_argument("--batch", type=int, default=16, help="rows of a batch, on each rank (16)")
    parser.add_argument("--seconds", type=float, default=10, help="the least time for each size and bucket size (10)")
    parser.add_argument("--json", type=Path, help="the record")
    return parser.parse_args()


def main() -> None:
    """Measure. Rank 0 prints the rows and writes the record."""
    given = arguments()
    node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // node.size))
    device = device_of(node)
    registration.register()
    dist.init_process_group("mpicoll", init_method="mpi://")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    here = environment(Session(MPI.COMM_WORLD, node, str(device)))
    where = f"{here['cpu']}, {here['cores']} cores, {here['ranks']} ranks, {here['mpi']}, torch {here['torch']}"
    groups = groups_on(device, node)
    rows: list[Row] = []
    if dist.get_rank() == 0:
        print(f"# {where}\n# times in ms; batches of {given.batch} rows a rank\n{HEAD}", flush=True)
    for megabytes in given.sizes:
        for bucket_mb in given.buckets:
            if bucket_mb > megabytes and bucket_mb != min(given.buckets):
                continue  # one bucket holds all, as with the bucket size before
            found = measured(groups, device, megabytes, bucket_mb, given.batch, given.seconds)
            rows += found
            if dist.get_rank() == 0:
                print("\n".join(line_of(row, found[0]) for row in found), flush=True)
    if dist.get_rank() == 0 and given.json:
        settings = {"sizes_mb": given.sizes, "buckets_mb": given.buckets, "batch": given.batch, "layers": LAYERS}
        settings |= {"seconds": given.seconds, "wire_s_per_byte": WIRE}
        head = {"schema": "mpicoll-ddp-step/1", "started": started, "settings": settings, "environment": here}
        write(rows, given.json, head)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
