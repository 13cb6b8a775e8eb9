"""A program: random equal calls, and then one in which one rank gives another FIELD. Arguments: FIELD SEED."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import mpicoll

COLLECTIVES = {
    "op": ("allreduce", "reduce", "scan"), "root": ("bcast", "reduce", "gather"), "algorithm": ("allreduce",),
    "counts": ("allgatherv",),
}  # fmt: skip
"""Those that have the field; any other field is that of all of these:"""
ANY = "allreduce", "bcast", "reduce", "allgather", "scan", "exscan", "gather"
FIELDS = "collective", "op", "dtype", "dtype of the same size", "count", "root", "algorithm", "counts", "long or short"


@dataclass(frozen=True)
class Call:
    collective: str
    count: int
    dtype: str
    op: str
    root: int
    counts: tuple[int, ...]
    algorithm: str | None = None

    def make(self, comm: mpicoll.Communicator) -> None:
        x = np.ones(self.count, self.dtype)
        given: dict[str, Any] = {"algorithm": self.algorithm}
        if self.collective in ("allreduce", "reduce", "scan", "exscan"):
            given["op"] = self.op
        if self.collective in ("reduce", "bcast", "gather"):
            given["root"] = self.root
        if self.collective == "allgatherv":
            x, given["counts"] = np.ones(self.counts[comm.rank], self.dtype), list(self.counts)
        getattr(comm, self.collective)(x, **given)


def drawn(rng: random.Random, field: str) -> Call:
    """A random call that has this field."""
    name, count, dtype = rng.choice(COLLECTIVES.get(field, ANY)), rng.choice([3, 8, 70]), rng.choice(["f8", "i8", "f4"])
    counts = tuple(rng.randrange(1, 9) for _ in range(3))
    return Call(name, count, dtype, rng.choice(["sum", "max"]), rng.randrange(3), counts)


def changed(rng: random.Random, call: Call, field: str) -> Call:
    """The call with another such field."""
    others: dict[str, dict[str, Any]] = {
        "collective": {"collective": rng.choice([c for c in ("allreduce", "bcast", "scan") if c != call.collective])},
        "op": {"op": "min"},
        "dtype": {"dtype": "i2"},
        "dtype of the same size": {"dtype": {"f8": "i8", "i8": "u8", "f4": "i4"}[call.dtype]},
        "count": {"count": call.count - 1},
        "root": {"root": (call.root + 1) % 3},
        "algorithm": {"algorithm": rng.choice(["ring", "recursive_doubling"])},
        "counts": {"counts": (call.counts[0] + 1, *call.counts[1:])},
        "long or short": {"count": 1 << 17},
    }
    return replace(call, **others[field])


def plan(field: str, seed: int) -> tuple[list[Call], int, Call]:
    """What all ranks call, in the end another call than the odd rank; that rank; and its last call."""
    rng = random.Random(seed)
    calls = [drawn(rng, rng.choice(FIELDS)) for _ in range(rng.randrange(600))]
    last, odd = drawn(rng, field), rng.randrange(3)
    return [*calls, last], odd, changed(rng, last, field)


def main(field: str, seed: int) -> None:
    comm = mpicoll.Communicator()
    (*calls, last), odd, other = plan(field, seed)
    for call in calls:
        call.make(comm)
    (other if comm.rank == odd else last).make(comm)
    comm.barrier()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
