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
from typing import Any

import numpy as np
import torch

import mpicoll
import mpicoll.torch as dist

MOST_GROWTH = 32 << 20
"""Bytes that a rank may have more at the end than after a fifth of the calls."""
GROUPS = 4
"""Groups that there are at a time. The oldest one is freed when a new one is made."""
COUNTS = 1, 5, 300, 9_000, 20_000
"""Elements: calls of the last two are long enough to be carried out where arrays lie, on a core each or in turns."""


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
        name = self.rng.choice([*CALLS])
        count, root, first = self.rng.choice(COUNTS), self.rng.randrange(len(ranks)), self.rng.randrange(100)
        if comm is not None:
            x = comm.empty(count, np.int64) if self._own.random() < 0.9 else np.empty(count, np.int64)
            x.fill(first + comm.rank)
            found, expected = CALLS[name](comm, x, first, root)
            if name[0] == "i":
                self._pending.append((found.wait, lambda: found.result, expected))
            elif found is not None:
                self._check(found, expected)

    def _new_group(self) -> None:
        if len(self._groups) == GROUPS:
            oldest = self._groups.pop(0)[1]
            if oldest is not None:
                oldest.free()
        ranks = self.rng.sample(range(self.world.size), self.rng.randint(2, self.world.size))
        self._groups.append((ranks, self.world.subset(ranks)))

    def _asynchronous(self) -> None:
        first, count, waits = self.rng.randrange(100), self.rng.choice([1, 2000]), self.rng.random() < 0.1
        x = torch.full((count,), first + self.rank)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        expected = sum(range(first, first + self.world.size))
        self._pending.append((work.wait, x.numpy, expected))
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


Array = np.ndarray[Any, Any]
Call = Callable[[Any, Array, int, int], tuple[Any, Any]]
"""Of a communicator, an array with ``first + r`` in all elements of rank r, ``first``, and a root. Gives what comes
out, or None, and what must come out."""


def all_of(comm: Any, first: int) -> Array:
    """What each rank gives, one below the other."""
    return np.arange(first, first + comm.size)[:, np.newaxis]


def total(comm: Any, first: int, ranks: int | None = None) -> int:
    """The sum of what the first ranks give."""
    return sum(range(first, first + (comm.size if ranks is None else ranks)))


def output(comm: Any, x: Array, first: int) -> Any:
    return x if first % 2 else comm.empty_like(x)


def blocks(comm: Any, x: Array, values: Any) -> Array:
    """A block for each rank."""
    made: Array = comm.empty((comm.size, len(x)), np.int64)
    made[...] = values
    return made


def alltoall(comm: Any, x: Array, first: int, root: int) -> tuple[Any, Any]:
    """Rank r has 100 r + k for rank k."""
    others = all_of(comm, 0)
    return comm.alltoall(blocks(comm, x, 100 * comm.rank + others)), 100 * others + comm.rank


def alltoallv(comm: Any, x: Array, first: int, root: int) -> tuple[Any, Any]:
    """Rank r gets so many elements of each."""
    counts = [len(x) // (r + 1) for r in range(comm.size)]
    mine, rows = counts[comm.rank], comm.empty(sum(counts), np.int64)
    rows.fill(first + comm.rank)
    out = comm.empty(mine * comm.size, np.int64)
    return comm.alltoallv(rows, counts, [mine] * comm.size, out=out), np.repeat(all_of(comm, first), mine)


def scatter(comm: Any, x: Array, first: int, root: int) -> tuple[Any, Any]:
    given = blocks(comm, x, all_of(comm, first)) if comm.rank == root else None
    return comm.scatter(given, root, out=x), first + comm.rank


def sendrecv(comm: Any, x: Array, first: int, root: int) -> tuple[Any, Any]:
    there, back = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return comm.sendrecv(x, there, np.empty_like(x), back), first + back


CALLS: dict[str, Call] = {
    "allreduce": lambda comm, x, first, root: (comm.allreduce(x, out=output(comm, x, first)), total(comm, first)),
    "iallreduce": lambda comm, x, first, root: (comm.iallreduce(x, out=output(comm, x, first)), total(comm, first)),
    "ibcast": lambda comm, x, first, root: (comm.ibcast(x, root), first + root),
    "node": lambda comm, x, first, root: (comm.allreduce(x, out=x, algorithm="node"), total(comm, first)),
    "bcast": lambda comm, x, first, root: (comm.bcast(x, root), first + root),
    "reduce": lambda comm, x, first, root: (comm.reduce(x, root=root), total(comm, first)),
    "reduce_scatter": lambda comm, x, first, root: (comm.reduce_scatter(blocks(comm, x, x)), total(comm, first)),
    "scan": lambda comm, x, first, root: (comm.scan(x), total(comm, first, comm.rank + 1)),
    "exscan": lambda comm, x, first, root: (comm.exscan(x), total(comm, first, comm.rank)),
    "allgather": lambda comm, x, first, root: (comm.allgather(x), all_of(comm, first)),
    "gather": lambda comm, x, first, root: (comm.gather(x, root=root), all_of(comm, first)),
    "scatter": scatter,
    "alltoall": alltoall,
    "alltoallv": alltoallv,
    "barrier": lambda comm, x, first, root: (comm.barrier(), None),
    "send": sendrecv,
    "object": lambda comm, x, first, root: (comm.allreduce_object(first + comm.rank), total(comm, first)),
}


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
