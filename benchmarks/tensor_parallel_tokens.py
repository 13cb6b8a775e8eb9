"""How many tokens a second does a tensor-parallel language model of transformers generate over gloo and over mpicoll?

    mpicoll run -n 2 benchmarks/tensor_parallel_tokens.py --json record.json

The model is the Llama of examples/tensor_parallel.py, with random weights, in several sizes and dtypes. It generates
one token after another for one prompt: each layer has two all-reduces of a few hundred bytes to a few KiB for each.

The backends take turns in one job, in a changing order. In its turn, a backend makes the default group, in which
transformers splits the model. It then generates once untimed and some times timed. A time is that of the slowest rank.
All turns must generate the same tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from transformers.utils import logging

from mpicoll.bench.session import Session, environment

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from tensor_parallel import generate, split_model

BACKENDS = "gloo", "mpicoll"
SHAPES = {"small": (128, 4), "medium": (512, 8), "large": (2048, 8)}
"""The width and the number of layers."""
TIMED = 3
"""The generations of a turn that count."""


def turn(backend: str, dtype: torch.dtype, shape: str, length: int) -> tuple[list[int], list[float]]:
    """The tokens, and the seconds of each generation of so many."""
    dist.init_process_group(backend)
    width, layers = SHAPES[shape]
    model = split_model(dtype, width=width, layers=layers)
    tokens = generate(model, length)
    times = np.empty(TIMED)
    for i in range(TIMED):
        MPI.COMM_WORLD.Barrier()
        start = perf_counter()
        generate(model, length)
        times[i] = perf_counter() - start
    del model
    gc.collect()
    dist.destroy_process_group()
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return tokens, times.tolist()


def measured(dtype: str, shape: str, turns: int, length: int) -> list[dict[str, Any]]:
    """A row for each backend."""
    times: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    found: set[tuple[int, ...]] = set()
    for i in range(turns):
        for backend in BACKENDS[:: 1 if i % 2 else -1]:
            tokens, taken = turn(backend, getattr(torch, dtype), shape, length)
            found.add(tuple(tokens))
            times[backend] += taken
    same = len(found) == 1
    if dtype == "float32" and not same:
        raise RuntimeError(f"{shape}: the backends generate different tokens: {sorted(found)}")
    return [
        {"model": shape, "dtype": dtype, "backend": backend, "same_tokens": same,
         "tokens_per_s": round(length / float(np.median(each)), 2), "seconds": [round(s, 4) for s in each]}
        for backend, each in times.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(SHAPES), help=f"some of {', '.join(SHAPES)} (all)")
    parser.add_argument("--turns", type=int, default=4, help="turns of each backend (4)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a generation (32)")
    parser.add_argument("--json", type=Path, help="the record")
    given = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    world = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // node.size))
    here = environment(Session(world, node, "cpu"))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    if world.rank == 0:
        print(f"# {here['cpu']}, {here['cores']} cores, {here['ranks']} ranks, {here['mpi']}, torch {here['torch']}")
        print("\n".join(f"# OVERLOADED: {each}" for each in here["overload"]))
        print(f"{'model':8} {'dtype':10} {'backend':10} {'tokens/s':>9}", flush=True)
    rows: list[dict[str, Any]] = []
    for shape in given.models.split(","):
        for dtype in ("float32", "bfloat16"):
            for row in measured(dtype, shape, given.turns, given.tokens):
                rows.append(row)
                if world.rank == 0:
                    print("{model:8} {dtype:10} {backend:10} {tokens_per_s:9.2f}".format(**row), flush=True)
    if world.rank == 0 and given.json:
        head = {"schema": "mpicoll-tensor-parallel/1", "started": started, "environment": here, "tokens": given.tokens}
        given.json.write_text(json.dumps({**head, "models": SHAPES, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
