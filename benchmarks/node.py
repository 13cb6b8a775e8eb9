"""How fast are collectives of one node? mpi4py, mpicoll on ordinary and on shared arrays, and gloo, in one job.

    mpicoll run -n 2 benchmarks/node.py [--busy 2] [--deepspeed] [--json FILE]
    python benchmarks/node.py --plot PICTURE FILE ...

All ways take turns, round by round. mpi4py and mpicoll have the same ordinary arrays. A figure is a median of some
rounds in microseconds, of the slowest rank. The machine changes between rounds, so that a ratio is the median of each
round's. There are two loops:

- `fresh`: each rank writes its input before each call, so that the input lies in the caches of its own core, and meets
  the others in a barrier. One call is timed.
- `loop`: one call after another, as OSU's benchmarks make them. What a rank has not written since stays in the caches
  of the ranks that read it, so that this flatters (ompi#12908). An all-reduce is in place, so that its input is the
  last call's result.

`--busy N` starts N processes that compute all the time. `--deepspeed` measures DeepSpeed's kernel for all-reduces of a
node, too: this needs `pip install deepspeed ninja` and g++. bfloat16 has no line of mpi4py, which cannot add it up.
Python's timeit times the calls, and turns garbage collection off meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from timeit import Timer
from typing import Any

SIZES = (*(8 << 3 * k for k in range(8)), 64 << 20)
"""Bytes of the longest array of a call: 8 B to 16 MiB, and 64 MiB."""
LENGTHS = 8, 4 << 10, 16 << 10, 256 << 10, 4 << 20
"""The same for the other collectives, whose calls by mpi4py are these:"""
OTHERS = {
    "bcast": "world.Bcast(x)",
    "gather": "world.Gather(x, y)",
    "scatter": "world.Scatter(x, y)",
    "reduce": "world.Reduce(x, y)",
    "reduce_scatter": "world.Reduce_scatter_block(x, y)",
    "allgather": "world.Allgather(x, y)",
    "alltoall": "world.Alltoall(x, y)",
}
ROUNDS = 7
SECONDS = 0.02
"""Of one way in one round."""

COMPUTES = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(10**6))"
"""What a busy process runs. It has a session of its own, as other programs have: Linux shares cores among sessions."""

Way = tuple[Any, Timer]
"""The input, if there is one, and the call as a program writes it."""
Times = list[tuple[float, float]]
"""Of both loops: the microseconds, and how many times as fast as mpi4py's call of the same round that is."""


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
    argv, count = [sys.executable, "-c", COMPUTES, str(os.getpid())], busy * (comm.rank == 0)
    others = [subprocess.Popen(argv, start_new_session=True) for _ in range(count)]
    try:
        yield comm, about
    finally:
        for other in others:
            other.kill()


def measure(busy: int, deepspeed: bool, file: Path | None) -> None:
    rows = []
    with job(busy) as (comm, about):
        for title, ways in cases(comm, kernel_of_deepspeed(comm) if deepspeed else None):
            found = timed(comm, ways)
            rows.append((title, found))
            if comm.rank == 0:
                cells = (f"{name} {fresh:9.2f} {loop:9.2f}" for name, ((fresh, _), (loop, _)) in found.items())
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


def cases(comm: Any, deepspeed: Any) -> Iterator[tuple[str, dict[str, Way]]]:
    """Each case's title, and its ways."""
    import numpy as np
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    import mpicoll.torch

    known = {"comm": comm, "world": MPI.COMM_WORLD, "torch": mpicoll.torch, "dist": dist, "deepspeed": deepspeed}

    def way(call: str, x: Any = None, y: Any = None) -> Way:
        return x, Timer(call, globals={**known, "x": x, "y": y, "IN_PLACE": MPI.IN_PLACE})

    yield (
        "barrier",
        {"mpi4py": way("world.Barrier()"), "mpicoll": way("comm.barrier()"), "gloo": way("dist.barrier()")},
    )
    for nbytes in SIZES:
        long, n = nbytes >= 16 << 10, nbytes // 4
        ordinary = np.ones(n, np.float32)
        yield (
            f"allreduce float32 {nbytes}",
            {
                "mpi4py": way("world.Allreduce(IN_PLACE, x)", ordinary),
                "mpicoll": way("comm.allreduce(x, out=x)", ordinary),
                **({"shared": way("comm.allreduce(x, out=x)", comm.empty(n, np.float32))} if long else {}),
                "mpicoll.torch": way("torch.all_reduce(x)", torch.ones(n)),
                "gloo": way("dist.all_reduce(x)", torch.ones(n)),
                **({"DeepSpeed": way("deepspeed(x)", torch.ones(n))} if deepspeed else {}),
            },
        )
        t, g, d = (torch.ones(2 * n, dtype=torch.bfloat16) for _ in range(3))
        u = mpicoll.torch.empty(2 * n, dtype=torch.bfloat16)
        yield (
            f"allreduce bfloat16 {nbytes}",
            {
                "mpicoll.torch": way("torch.all_reduce(x)", t),
                **({"shared": way("torch.all_reduce(x)", u)} if long else {}),
                "gloo": way("dist.all_reduce(x)", g),
                **({"DeepSpeed": way("deepspeed(x)", d)} if deepspeed else {}),
            },
        )
    for operation, mpis in OTHERS.items():
        for nbytes in LENGTHS:
            n = max(1, nbytes // 4 // comm.size)
            all_n = n * comm.size
            gathers, scatters = "gather" in operation, "scatter" in operation
            whole = all_n if operation == "alltoall" or gathers or scatters else nbytes // 4
            given, taken = n if gathers else whole, n if scatters else whole
            own = "comm.bcast(x)" if operation == "bcast" else f"comm.{operation}(x, out=y)"
            arrays = np.empty(given, np.float32), np.empty(taken, np.float32)
            ways = {"mpi4py": way(mpis, *arrays), "mpicoll": way(own, *arrays)}
            if min(given, taken) * 4 >= 16 << 10:
                ways["shared"] = way(own, comm.empty(given, np.float32), comm.empty(taken, np.float32))
            yield f"{operation} float32 {nbytes}", ways


def timed(comm: Any, ways: dict[str, Way]) -> dict[str, Times]:
    """The times of each way. Collective."""
    calls = {name: calls_of(comm, call) for name, (_, call) in ways.items()}
    rounds: list[dict[str, tuple[float, float]]] = []
    for _ in range(ROUNDS):
        rounds.append({})
        for name, (x, call) in ways.items():
            write = None if x is None else x.fill if hasattr(x, "fill") else x.fill_
            fresh = []
            for _ in range(min(calls[name], 50)):
                if write is not None:
                    write(1.0)
                comm.barrier()
                fresh.append(call.timeit(1))
            comm.barrier()
            rounds[-1][name] = median(fresh) * 1e6, call.timeit(calls[name]) / calls[name] * 1e6
    ranks = comm.allgather_object(rounds)
    found: dict[str, Times] = {name: [] for name in ways}
    for loop in (0, 1):
        slowest = {name: [max(each[i][name][loop] for each in ranks) for i in range(ROUNDS)] for name in ways}
        for name, times in slowest.items():
            ratios = [base / own for base, own in zip(slowest.get("mpi4py", times), times, strict=True)]
            found[name].append((round(median(times), 3), median(ratios)))
    return found


def calls_of(comm: Any, call: Timer) -> int:
    """How many of them are timed at a time, in the loop. Collective. The first ones take longer, and ranks do not begin
    together: of few calls, that would be a part of the time."""
    calls, seconds = 1, 0.0
    while seconds < SECONDS / 4:
        calls *= 3
        comm.barrier()
        seconds = comm.allreduce_object(call.timeit(calls), max)
    return max(3, int(calls * SECONDS / seconds))


def summary(rows: Sequence[tuple[str, dict[str, Times]]]) -> None:
    """How many times as fast as mpi4py each way is: the geometric mean, and the least."""
    for loop, name in enumerate(("fresh", "loop")):
        ratios: dict[tuple[str, str], list[float]] = {}
        for title, found in rows:
            for way, times in found.items():
                if way != "mpi4py" and "mpi4py" in found:
                    ratios.setdefault((title.split()[0], way), []).append(times[loop][1])
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
                    lines.setdefault(way, []).append((int(title.split()[2]), times[0][0]))
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
