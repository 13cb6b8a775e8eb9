"""A program: random calls over random groups, with pauses, some of them asynchronous. Arguments: CALLS SEED.

All ranks draw alike. Arrays hold whole numbers, so every result is known exactly.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import mpicoll
import mpicoll.torch as dist
from mpicoll.communicator.engine.requests import Request

MOST_GROWTH = 32 << 20
"""Bytes that a rank may have more at the end than after a fifth of the calls."""
KINDS = (
    "allreduce",
    "iallreduce",
    "ibcast",
    "node",
    "bcast",
    "allgather",
    "reduce",
    "reduce_scatter",
    "scan",
    "exscan",
    "gather",
    "scatter",
    "alltoall",
    "alltoallv",
    "barrier",
    "send",
    "object",
)
COUNTS = (1, 5, 300, 9_000, 20_000)
"""Elements: calls of the last two are long enough to be carried out where arrays lie, on a core each or in turns."""
GROUPS = 4
"""Groups that there are at a time. The oldest one is freed when a new one is made."""


def memory() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """The groups of a rank, and what it has pending. ``wrong`` counts results that are not right."""

    def __init__(self, seed: int) -> None:
        dist.init_process_group()
        self.world, self.rng, self.wrong = mpicoll.Communicator(), random.Random(seed), 0
        self.rank = self.world.rank
        self._own = random.Random(seed + 1000 * self.rank)
        """What each rank draws for itself: whether its array lies in memory that ranks share."""
        self._groups: list[tuple[list[int], mpicoll.Communicator | None]] = []
        self._pending: list[Callable[[], None]] = []

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
        what = self.rng.choice([*KINDS])
        count, root, first = self.rng.choice(COUNTS), self.rng.randrange(len(ranks)), self.rng.randrange(100)
        if comm is not None:
            self._synchronous(comm, what, count, root, first)

    def _new_group(self) -> None:
        if len(self._groups) == GROUPS:
            oldest = self._groups.pop(0)[1]
            if oldest is not None:
                oldest.free()
        ranks = self.rng.sample(range(self.world.size), self.rng.randint(2, self.world.size))
        self._groups.append((ranks, self.world.subset(ranks)))

    def _synchronous(self, comm: mpicoll.Communicator, what: str, count: int, root: int, first: int) -> None:
        """Rank r of the group has ``first + r`` in all its elements."""
        size = comm.size
        x = comm.empty(count, np.int64) if self._own.random() < 0.9 else np.empty(count, np.int64)
        x.fill(first + comm.rank)
        total, everyone = size * first + size * (size - 1) // 2, np.arange(first, first + size)[:, np.newaxis]
        match what:
            case "allreduce":
                self._check(comm.allreduce(x, out=x if first % 2 else comm.empty_like(x)), total)
            case "iallreduce":
                self._begun(comm.iallreduce(x, out=x if first % 2 else comm.empty_like(x)), total)
            case "ibcast":
                self._begun(comm.ibcast(x, root), first + root)
            case "node":
                self._check(comm.allreduce(x, out=x, algorithm="node"), total)
            case "reduce_scatter":
                blocks = comm.empty((size, count), np.int64)
                blocks[...] = x
                self._check(comm.reduce_scatter(blocks), total)
            case "alltoallv":
                counts = [count // (r + 1) for r in range(size)]  # rank r gets so many elements of each
                rows = comm.empty(sum(counts), np.int64)
                rows.fill(first + comm.rank)
                mine = counts[comm.rank]
                expected = np.repeat(np.arange(first, first + size), mine)
                self._check(
                    comm.alltoallv(rows, counts, [mine] * size, out=comm.empty(mine * size, np.int64)), expected
                )
            case "bcast":
                self._check(comm.bcast(x, root), first + root)
            case "reduce":
                at_root = comm.reduce(x, root=root)
                self._check(total if at_root is None else at_root, total)
            case "allgather":
                self._check(comm.allgather(x), everyone)
            case "scan" | "exscan":
                found, before = getattr(comm, what)(x), comm.rank + (what == "scan")
                if before:
                    self._check(found, before * first + before * (before - 1) // 2)
            case "gather":
                at_root = comm.gather(x, root=root)
                self._check(everyone if at_root is None else at_root, everyone)
            case "scatter":
                blocks = comm.empty((size, count), np.int64)
                blocks[...] = everyone
                self._check(comm.scatter(blocks if comm.rank == root else None, root, out=x), first + comm.rank)
            case "alltoall":  # rank r has 100 r + k for rank k
                blocks = comm.empty((size, count), np.int64)
                blocks[...] = 100 * comm.rank + np.arange(size)[:, np.newaxis]
                self._check(comm.alltoall(blocks), 100 * np.arange(size)[:, np.newaxis] + comm.rank)
            case "send":
                there, back = (comm.rank + 1) % size, (comm.rank - 1) % size
                self._check(comm.sendrecv(x, there, np.empty_like(x), back), first + back)
            case "object":
                self._check(comm.allreduce_object(first + comm.rank), total)
            case _:
                comm.barrier()

    def _asynchronous(self) -> None:
        first, count, waits = self.rng.randrange(100), self.rng.choice([1, 2000]), self.rng.random() < 0.1
        x = torch.full((count,), first + self.rank)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        size = self.world.size

        def complete() -> None:
            work.wait()
            self._check(x.numpy(), size * first + size * (size - 1) // 2)

        self._pending.append(complete)
        if waits or len(self._pending) > 20:
            self.complete()

    def _begun(self, request: Request, expected: object) -> None:
        def complete() -> None:
            request.wait()
            self._check(request.result, expected)

        self._pending.append(complete)

    def complete(self) -> None:
        """Wait for all that is pending."""
        while self._pending:
            self._pending.pop(0)()

    def _check(self, found: object, expected: object) -> None:
        self.wrong += not np.all(np.equal(found, expected))  # type: ignore[call-overload]


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
