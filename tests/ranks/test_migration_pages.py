"""The pages on migration from mpi4py and Horovod: both sides of a row leave the same in every variable, on every rank.

Horovod is not installed here. ``Horovod`` says what its calls mean, in NumPy's and mpi4py's words.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicoll

PAGES = Path(__file__).parents[2] / "docs/how-to"
ROW = re.compile(r"^\| `(.*?)` \| `(.*?)` \|$", re.MULTILINE)
BEFORE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def plain(value: Any) -> Any:
    """What can be compared, of an array, a communicator or anything else."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value.tolist()
    if isinstance(value, (MPI.Comm, mpicoll.Communicator)):
        return (value.rank, value.size) if value else None  # mpi4py's null communicator is false
    return value


def left_by(names: dict[str, Any]) -> dict[str, Any]:
    """The variables of a program; communicators, requests, modules and mpicoll's way to a result are none."""
    skipped = {"__builtins__", "world", "comm", "r", "h", "box", "hvd"}
    return {k: plain(v) for k, v in names.items() if k not in skipped and not isinstance(v, ModuleType)}


def rows_of(page: str) -> tuple[str, list[tuple[str, str]]]:
    """What is executed before the rows, and both sides of each row."""
    text = (PAGES / page).read_text().partition("## Change the training")[0]
    (before,) = BEFORE.findall(text)
    return before, ROW.findall(text)


def test_a_name_of_mpi4pys_is_answered_with_its_row() -> None:
    """Of each method in the left column that a Communicator does not have."""
    _, rows = rows_of("migrate_mpi4py.md")
    with mpicoll.Communicator() as comm:
        for name in {name for a, _ in rows for name in re.findall(r"world\.([A-Z]\w*)\(", a)[:1]}:
            with pytest.raises(AttributeError, match=f"no attribute '{name}': mpicoll's is ") as caught:
                getattr(comm, name)
            said = str(caught.value).partition("mpicoll's is comm.")[2].partition(" (")[0].partition("(")[0]
            assert any(f"comm.{said}" in b for a, b in rows if f"world.{name}(" in a), (name, said)
        for name in ("Get_size", "Dup", "dup", "Allreduce_init", "reduce_object"):
            with pytest.raises(AttributeError, match="mpicoll's is comm"):
                getattr(comm, name)
        with pytest.raises(AttributeError, match="keep mpi4py's call"):
            comm.Get_coords  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
            comm.nonsense  # type: ignore[attr-defined]  # noqa: B018
        assert not hasattr(comm, "__cuda_array_interface__")


KEYWORDS = [
    (
        "comm.sendrecv(x, dest=0, recvbuf=x, source=0)",
        r"'recvbuf': mpicoll's is comm\.sendrecv\(x, right, y, left\) \(",
    ),
    (
        "comm.allgatherv(sendbuf=x, counts=[2])",
        r"'sendbuf': mpicoll's is comm\.allgatherv\(mine, counts, out=whole\) \(",
    ),
    ("comm.reduce_scatterv(x, recvcounts=[2])", r"'recvcounts': mpicoll's is comm\.reduce_scatterv\("),
    ("comm.subset(group=[0])", r"'group': mpicoll's is comm\.subset\(\[1, 0\]\)"),
    ("comm.iprobe(status=None)", r"'status': mpicoll's is comm\.iprobe\(source, tag\)"),
    ("comm.iallreduce(sendbuf=x)", r"'sendbuf': mpicoll's is comm\.iallreduce\(x"),
    ("comm.neighbor_allgather(sendbuf=x)", r"'sendbuf': mpicoll's is comm\.neighbor_allgather\(x"),
    ("comm.ibcast(sendbuf=x)", r"'sendbuf': mpicoll's is comm\.ibcast\(x"),
    ("comm.allgather_object(sendbuf=x)", r"'sendbuf': mpicoll's is comm\.allgather_object\(obj"),
    ("comm.recv(source=0)", r"comm\.recv\(y\), and comm\.recv_object\(\) returns Python objects"),
    ("comm.sendrecv(x, dest=0, source=0)", r"left\), and mpi4py's own call returns Python objects"),
    ("comm.isend(x, MPI.PROC_NULL).Wait()", r"'Wait': mpicoll's is wait\(\)"),
    ("comm.allreduce(x, nonsense=1)", r"'nonsense'$"),
    ("comm.send(x)", r"'dest'$"),
]


@pytest.mark.parametrize(("call", "answer"), KEYWORDS)
def test_a_keyword_of_mpi4pys_is_answered_with_the_call(call: str, answer: str) -> None:
    with mpicoll.Communicator() as comm, pytest.raises((TypeError, AttributeError), match=answer):
        eval(call, {"comm": comm, "x": np.ones(2), "MPI": MPI})


@pytest.mark.mpi(min_size=2)
def test_both_sides_leave_the_same_as_mpi4py() -> None:
    before, rows = rows_of("migrate_mpi4py.md")
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    exec(before, theirs)
    exec(before, ours)
    assert len(rows) > 40
    for of_mpi4py, of_mpicoll in rows:
        exec(of_mpi4py, theirs)
        exec(of_mpicoll, ours)
        assert left_by(ours) == left_by(theirs), of_mpicoll


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


@pytest.mark.mpi(min_size=2)
def test_both_sides_leave_the_same_as_horovod() -> None:
    before, rows = rows_of("migrate_horovod.md")
    ours: dict[str, Any] = {}
    exec(before, ours)
    try:
        theirs = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in ours.items()}
        theirs["hvd"] = Horovod(MPI.COMM_WORLD)
        assert len(rows) > 15
        for of_horovod, of_mpicoll in rows:
            exec(of_horovod, theirs)
            exec(of_mpicoll, ours)
            assert left_by(ours) == left_by(theirs), of_mpicoll
    finally:
        ours["dist"].destroy_process_group()
