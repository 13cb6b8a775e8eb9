"""A program: random calls over random groups, with pauses, some of them asynchronous. Arguments: CALLS SEED.

All ranks draw alike. Arrays hold whole numbers, so every result is known exactly."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import mpicoll
import mpicoll.torch as dist
from mpicoll.algorithms.collectives import COLLECTIVES
from tests import oracle
from tests.processes import memory

MOST_GROWTH = 32 << 20
"""Bytes that a rank may have more at the end than after a fifth of the calls."""
COUNTS = 1, 5, 300, 9_000, 20_000
"""Elements: calls of the last two are long enough to be carried out where arrays lie, on a core each or in turns."""
GROUPS = 4
"""Groups that there are at a time. The oldest one is freed when a new one is made."""
CALLS = *COLLECTIVES, "iallreduce", "ibcast", "node", "alltoallv", "sendrecv", "allreduce_object"


class Soak:
    """The groups of a rank, and what it has pending. ``wrong`` counts results that are not right."""

    def __init__(self, seed: int) -> None:
        dist.init_process_group()
        self.world, self.rng, self.wrong = mpicoll.Communicator(), random.Random(seed), 0
        self.rank = self.world.rank
        self._own = random.Random(seed + 1000 * self.rank)
        """What each rank draws for itself: whether its array lies in memory that ranks share."""
        self._groups: list[tuple[list[int], mpicoll.Communicator | None]] = []
        self._pending: list[tuple[Callable[[], object], Callable[[], object], object]] = []

    def call(self) -> None:
        """One random call of a random group, and now and then a pause, or another group."""
        if not self._groups or self.rng.random() < 0.002:
            self._new_group()
        pausing, seconds = self.rng.randrange(self.world.size), self.rng.choice([0.001, 0.02])
        if self.rng.random() < 0.002 and self.rank == pausing:
            time.sleep(seconds)
        if self.rng.random() < 0.2:
            self._asynchronous()
            return
        ranks, comm = self.rng.choice(self._groups)
        name, count = self.rng.choice(CALLS), self.rng.choice(COUNTS)
        root, first = self.rng.randrange(len(ranks)), self.rng.randrange(100)
        if comm is not None:
            self._of_group(comm, name, count, root, first)

    def _new_group(self) -> None:
        if len(self._groups) == GROUPS:
            oldest = self._groups.pop(0)[1]
            if oldest is not None:
                oldest.free()
        ranks = self.rng.sample(range(self.world.size), self.rng.randint(2, self.world.size))
        self._groups.append((ranks, self.world.subset(ranks)))

    def _array(self, comm: Any, shape: tuple[int, ...], values: Any) -> Any:
        x = comm.empty(shape, np.int64) if self._own.random() < 0.9 else np.empty(shape, np.int64)
        x[...] = values
        return x

    def _of_group(self, comm: Any, name: str, count: int, root: int, first: int) -> None:
        """Rank r gives ``first + r`` in all elements, and another block to each rank where it gives several."""
        rank, size = comm.rank, comm.size
        if name == "sendrecv":
            x, back = self._array(comm, (count,), first + rank), (rank - 1) % size
            self._check(comm.sendrecv(x, (rank + 1) % size, np.empty_like(x), back), first + back)
        elif name == "allreduce_object":
            self._check(comm.allreduce_object(first + rank), sum(range(first, first + size)))
        elif name == "alltoallv":  # rank r gets so many elements of each
            counts = [count // (r + 1) for r in range(size)]
            mine, rows = counts[rank], self._array(comm, (sum(counts),), first + rank)
            found = comm.alltoallv(rows, counts, [mine] * size, out=comm.empty(mine * size, np.int64))
            self._check(found, np.repeat(np.arange(first, first + size), mine))
        elif name == "barrier":
            comm.barrier()
        else:
            collective = {"node": "allreduce"}.get(name, name.removeprefix("i"))
            table = COLLECTIVES[collective]
            shape = (size, count) if table.gives == "p" else (count,)
            blocks = 1000 * np.arange(size)[:, np.newaxis] if table.gives == "p" else 0
            given = [np.broadcast_to(first + r + blocks, shape) for r in range(size)]
            expected = oracle.outcome(collective, given, "sum", root, "int64")[rank]
            x = self._array(comm, shape, given[rank])
            words: dict[str, Any] = {"root": root} if table.rooted else {}
            if name == "scatter":
                words["out"], x = comm.empty(count, np.int64), x if rank == root else None
            elif collective == "allreduce":
                words["out"] = x if first % 2 else comm.empty_like(x)
            if name == "node":
                words["algorithm"] = "node"
            found = getattr(comm, "allreduce" if name == "node" else name)(x, **words)
            if name.startswith("i"):
                self._pending.append((found.wait, lambda: found.result, expected))
            elif expected is not None:
                self._check(np.ravel(found), expected)

    def _asynchronous(self) -> None:
        first, count, waits = self.rng.randrange(100), self.rng.choice([1, 2000]), self.rng.random() < 0.1
        x = torch.full((count,), first + self.rank)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        self._pending.append((work.wait, x.numpy, sum(range(first, first + self.world.size))))
        if waits or len(self._pending) > 20:
            self.complete()

    def complete(self) -> None:
        """Wait for all that is pending."""
        while self._pending:
            wait, result, expected = self._pending.pop(0)
            wait()
            self._check(result(), expected)

    def _check(self, found: Any, expected: Any) -> None:
        self.wrong += not np.all(np.equal(found, expected))


def main(calls: int, seed: int) -> None:
    soak = Soak(seed)
    print(f"rank {soak.rank} is {os.getpid()}")
    before = 0
    for i in range(calls):
        soak.call()
        if i == calls // 5:
            soak.complete()
            before = memory()
    soak.complete()
    growth = memory() - before
    if soak.wrong or growth > MOST_GROWTH:
        sys.exit(f"rank {soak.rank}: {soak.wrong} wrong results, {growth} bytes more")
    print(f"rank {soak.rank} has 0 wrong results, {growth >> 10} KiB more")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
