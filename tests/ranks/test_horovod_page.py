"""docs/how-to/migrate_horovod.md: the right side of each row leaves what Horovod's documentation says of the left one.

Horovod is not installed here. ``Horovod`` says what its calls mean, in NumPy's and mpi4py's words.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from mpi4py import MPI  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs/how-to/migrate_horovod.md").read_text()
ROW = re.compile(r"^\| `(.*?)` \| `(.*?)` \|$", re.MULTILINE)
BEFORE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Horovod:
    """The calls of horovod.torch that the page names."""

    Sum, Average, Max = "sum", "average", "max"

    def __init__(self, world: MPI.Intracomm) -> None:
        self.world = world
        self.rank, self.size = world.Get_rank, world.Get_size

    def local_rank(self) -> int:
        return int(self.world.Split_type(MPI.COMM_TYPE_SHARED).rank)

    def _all(self, x: Any) -> np.ndarray[Any, Any]:
        return np.stack(self.world.allgather(x.numpy()))

    def allreduce(self, x: Any, op: str = Average) -> Any:
        combine = getattr(np, {"sum": "sum", "average": "mean", "max": "max"}[op])
        return torch.from_numpy(combine(self._all(x), axis=0))

    def allreduce_(self, x: Any, op: str = Average) -> Any:
        return x.copy_(self.allreduce(x, op))

    def allreduce_async_(self, x: Any, op: str = Average) -> Any:
        return self.allreduce_(x, op)

    def synchronize(self, handle: Any) -> Any:
        return handle

    def broadcast(self, x: Any, root_rank: int) -> Any:
        return torch.from_numpy(self._all(x)[root_rank])

    def broadcast_(self, x: Any, root_rank: int) -> Any:
        return x.copy_(self.broadcast(x, root_rank))

    def allgather(self, x: Any) -> Any:
        return torch.from_numpy(np.concatenate(self._all(x)))

    def reducescatter(self, x: Any, op: str = Average) -> Any:
        return self.allreduce(x, op).chunk(self.size())[self.rank()]

    def alltoall(self, x: Any) -> Any:
        return torch.cat([torch.from_numpy(each).chunk(self.size())[self.rank()] for each in self._all(x)])

    def barrier(self) -> None:
        self.world.barrier()

    def broadcast_object(self, obj: Any, root_rank: int) -> Any:
        return self.world.bcast(obj, root_rank)

    def allgather_object(self, obj: Any) -> list[Any]:
        return self.world.allgather(obj)


def left_by(names: dict[str, Any]) -> dict[str, Any]:
    """The variables of a program; ``h`` is a handle, ``box`` is mpicoll's way to a result."""
    skipped = {"__builtins__", "h", "box", "hvd"}
    kept = {k: v for k, v in names.items() if k not in skipped and not isinstance(v, ModuleType)}
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in kept.items()}


@pytest.mark.mpi(min_size=2)
def test_both_sides_leave_the_same() -> None:
    (before,) = BEFORE.findall(PAGE)
    ours: dict[str, Any] = {}
    exec(before, ours)
    try:
        theirs = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in ours.items()}
        theirs["hvd"] = Horovod(MPI.COMM_WORLD)
        rows = ROW.findall(PAGE.partition("## Change the training")[0])
        assert len(rows) > 15
        for of_horovod, of_mpicoll in rows:
            exec(of_horovod, theirs)
            exec(of_mpicoll, ours)
            assert left_by(ours) == left_by(theirs), of_mpicoll
    finally:
        ours["dist"].destroy_process_group()
