"""How fast are collectives of one node? mpi4py, mpicoll on ordinary and on shared arrays, and gloo, in one job.

    mpicoll run -n 2 benchmarks/node.py [--busy 2] [--deepspeed] [--json FILE]
    python benchmarks/node.py --plot PICTURE FILE ...

All ways take turns, on the same lengths. A figure is a median in microseconds, of the slowest rank, of two loops:

- `fresh`: each rank writes its input before each call, so that the input lies in the caches of its own core, and meets
  the others in a barrier. One call is timed.
- `loop`: one call after another on the same input, as OSU's benchmarks make them. What a rank has not written stays in
  the caches of the ranks that read it, so that this flatters (ompi#12908).

`--busy N` starts N processes that compute all the time. `--deepspeed` measures DeepSpeed's kernel for all-reduces of a
node, too: this needs `pip install deepspeed ninja` and g++. bfloat16 has no line of mpi4py, which cannot add it up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

SIZES = (*(8 << 3 * k for k in range(8)), 64 << 20)
"""Bytes of the longest array of a call: 8 B to 16 MiB, and 64 MiB."""
OTHERS = "bcast", "reduce", "reduce_scatter", "allgather", "alltoall"
LENGTHS = 8, 4 << 10, 16 << 10, 256 << 10, 4 << 20
"""The same for the other collectives."""
ROUNDS = 7
SECONDS = 0.02
"""Of one way in one round."""

Way = Callable[[], object]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--busy", type=int, default=0, metavar="N")
    p.add_argument("--deepspeed", action="store_true")
    p.add_argument("--json", type=Path)
    p.add_argument("--plot", type=Path)
    p.add_argument("records", nargs="*", type=Path)
    args = p.parse_args()
    if args.plot:
        plot([json.loads(each.read_text()) for each in args.records], args.plot)
    else:
        measure(args.busy, args.deepspeed, args.json)


@contextmanager
def job(busy: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A Communicator, beside which mpicoll.torch and gloo are ready, and what the figures depend on. Meanwhile so many
    processes compute."""
    import torch
    import torch.distributed as dist

    import mpicoll
    import mpicoll.torch
    from mpicoll.machine.linux import cpu_name
    from mpicoll.machine.mpi_library import library

    torch.set_num_threads(1)
    comm = mpicoll.Communicator()
    mpicoll.torch.init_process_group()
    dist.init_process_group("gloo", init_method="mpi://")
    about = {"cpu": cpu_name(), "mpi": library(), "ranks": comm.size, "busy": busy, "torch": torch.__version__}
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy * (comm.rank == 0))]
    try:
        yield comm, about
    finally:
        for other in others:
            other.kill()


def measure(busy: int, deepspeed: bool, file: Path | None) -> None:
    rows = []
    with job(busy) as (comm, about):
        for title, ways in cases(comm, kernel_of_deepspeed(comm) if deepspeed else None):
            found = {name: timed(comm, *way) for name, way in ways.items()}
            rows.append((title, found))
            if comm.rank == 0:
                cells = (f"{name} {fresh:9.2f} {loop:9.2f}" for name, (fresh, loop) in found.items())
                print(f"{title:26s}", "   ".join(cells), flush=True)
    if comm.rank == 0:
        print(f"# {about}; each way: fresh, loop")
        summary(rows)
        if file:
            file.write_text(json.dumps({**about, "rows": rows}))


def kernel_of_deepspeed(comm: Any) -> Any:
    """What reduces a tensor in place, from the sources that DeepSpeed has installed. Collective."""
    import importlib.util
    import os

    import torch
    from torch.utils.cpp_extension import load

    found = importlib.util.find_spec("deepspeed")  # to import it takes seconds
    assert found is not None, "pip install deepspeed ninja"
    source = Path(str(found.origin)).parent / "ops/csrc/cpu"
    files = [str(source / "comm/shm_interface.cpp"), str(source / "comm/shm.cpp")]
    include = [str(source / "includes"), str(source / "comm")]
    build = partial(load, "deepspeed_shm", files, extra_cflags=["-O3", "-fopenmp"], extra_include_paths=include)
    if comm.rank == 0:
        build()
    comm.barrier()
    os.environ.update(LOCAL_SIZE=str(comm.size), MASTER_ADDR="peers", MASTER_PORT="1")  # these name its memory
    build().initialize(comm.size, comm.rank)
    return torch.ops.deepspeed.inference_all_reduce_


def cases(comm: Any, deepspeed: Any) -> Iterator[tuple[str, dict[str, tuple[Way, Way, int]]]]:
    """Each case's title, and its ways: what writes the input, the call, and how often it is made in a round."""
    import numpy as np
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    import mpicoll.torch

    world, size = MPI.COMM_WORLD, comm.size

    def way(x: Any, call: Way, nbytes: int) -> tuple[Way, Way, int]:
        return (lambda: x.fill_(1.0) if isinstance(x, torch.Tensor) else x.fill(1.0)), call, nbytes

    yield (
        "barrier",
        {
            "mpi4py": (lambda: None, world.Barrier, 0),
            "mpicoll": (lambda: None, comm.barrier, 0),
            "gloo": (lambda: None, dist.barrier, 0),
        },
    )
    for nbytes in SIZES:
        x, y = np.ones(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32)
        s, o = comm.empty(nbytes // 4, np.float32), comm.empty(nbytes // 4, np.float32)
        t, g, d = torch.ones(nbytes // 4), torch.ones(nbytes // 4), torch.ones(nbytes // 4)
        yield (
            f"allreduce float32 {nbytes}",
            {
                "mpi4py": way(x, partial(world.Allreduce, x, y), nbytes),
                "mpicoll": way(x, partial(comm.allreduce, x, out=y), nbytes),
                **({"shared": way(s, partial(comm.allreduce, s, out=o), nbytes)} if nbytes >= 16 << 10 else {}),
                "mpicoll.torch": way(t, partial(mpicoll.torch.all_reduce, t), nbytes),
                "gloo": way(g, partial(dist.all_reduce, g), nbytes),
                **({"DeepSpeed": way(d, partial(deepspeed, d), nbytes)} if deepspeed else {}),
            },
        )
        t, g, d = (torch.ones(nbytes // 2, dtype=torch.bfloat16) for _ in range(3))
        u = mpicoll.torch.empty(nbytes // 2, dtype=torch.bfloat16)
        yield (
            f"allreduce bfloat16 {nbytes}",
            {
                "mpicoll.torch": way(t, partial(mpicoll.torch.all_reduce, t), nbytes),
                **({"shared": way(u, partial(mpicoll.torch.all_reduce, u), nbytes)} if nbytes >= 16 << 10 else {}),
                "gloo": way(g, partial(dist.all_reduce, g), nbytes),
                **({"DeepSpeed": way(d, partial(deepspeed, d), nbytes)} if deepspeed else {}),
            },
        )
    for operation in OTHERS:
        for nbytes in LENGTHS:
            n = max(1, nbytes // 4 // size)
            lengths = {"allgather": (n, n * size), "reduce_scatter": (n * size, n), "alltoall": (n * size, n * size)}
            given, taken = lengths.get(operation, (nbytes // 4, nbytes // 4))
            ways = {}
            for name, new in (("mpi4py", np.empty), ("mpicoll", np.empty), ("shared", comm.empty)):
                if name == "shared" and min(given, taken) * 4 < 16 << 10:
                    continue
                x, y = new(given, np.float32), new(taken, np.float32)
                ways[name] = way(x, call_of(comm, world, name, operation, x, y), nbytes)
            yield f"{operation} float32 {nbytes}", ways


def call_of(comm: Any, world: Any, name: str, operation: str, x: Any, y: Any) -> Way:
    if name == "mpi4py":
        calls = {
            "bcast": partial(world.Bcast, x),
            "reduce": partial(world.Reduce, x, y),
            "reduce_scatter": partial(world.Reduce_scatter_block, x, y),
            "allgather": partial(world.Allgather, x, y),
            "alltoall": partial(world.Alltoall, x, y),
        }
        return calls[operation]
    return partial(comm.bcast, x) if operation == "bcast" else partial(getattr(comm, operation), x, out=y)


def timed(comm: Any, write: Way, call: Way, nbytes: int) -> tuple[float, float]:
    """The times of a call in both loops, in microseconds. Collective."""
    barrier = comm.barrier
    barrier()
    start = perf_counter()
    for _ in range(3):
        call()
    once = comm.allreduce_object((perf_counter() - start) / 3, max)
    calls = int(min(max(SECONDS / once, 3), 2000))
    fresh, loop = [], []
    for _ in range(ROUNDS):
        for _ in range(min(calls, 50)):
            write()
            barrier()
            start = perf_counter()
            call()
            fresh.append(perf_counter() - start)
        barrier()
        start = perf_counter()
        for _ in range(calls):
            call()
        loop.append((perf_counter() - start) / calls)
    slowest = comm.allreduce_object((median(fresh), median(loop)), lambda a, b: (max(a[0], b[0]), max(a[1], b[1])))
    return round(slowest[0] * 1e6, 3), round(slowest[1] * 1e6, 3)


def summary(rows: Sequence[tuple[str, dict[str, tuple[float, float]]]]) -> None:
    """How many times as fast as mpi4py each way is: the geometric mean, and the least."""
    for loop, name in enumerate(("fresh", "loop")):
        ratios: dict[tuple[str, str], list[float]] = {}
        for title, found in rows:
            for way, times in found.items():
                if way != "mpi4py" and "mpi4py" in found:
                    ratios.setdefault((title.split()[0], way), []).append(found["mpi4py"][loop] / times[loop])
        for (operation, way), each in ratios.items():
            print(f"# {name} {operation} {way}: {geometric_mean(each):.2f} times mpi4py's speed, least {min(each):.2f}")


def plot(records: Sequence[dict[str, Any]], picture: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(records), figsize=(5.5 * len(records), 4.2), sharey=True, squeeze=False)
    for axis, record in zip(axes[0], records, strict=True):
        lines: dict[str, list[tuple[int, float]]] = {}
        for title, found in record["rows"]:
            if title.startswith("allreduce float32"):
                for way, times in found.items():
                    lines.setdefault(way, []).append((int(title.split()[2]), times[0]))
        for way, points in lines.items():
            axis.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=way, base=2)
        axis.set(title=f"{record['mpi']}, {record['ranks']} ranks", xlabel="bytes", yscale="log")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("all-reduce of float32, microseconds")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
