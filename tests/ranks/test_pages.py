"""The pages on migration from mpi4py and Horovod: both sides of a row leave the same in every variable, on every rank.

Horovod is not installed here. ``horovod`` says what its calls mean, in NumPy's and mpi4py's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import examples_of_calls as calls
import numpy as np
import pytest
import torch
from mpi4py import MPI

import mpicoll
import mpicoll.torch as dist
from mpicoll.torch import hooks, nn
from tests.sharing import SHARED

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
    ("comm.reduce_scatterv(x, recvcounts=[2])", r"'recvcounts': mpicoll's is comm\.reduce_scatterv\("),
    ("comm.subset(group=[0])", r"'group': mpicoll's is comm\.subset\(\[1, 0\]\)"),
    ("comm.iprobe(status=None)", r"'status': mpicoll's is comm\.iprobe\(source, tag\)"),
    ("comm.ibcast(sendbuf=x)", r"'sendbuf': mpicoll's is comm\.ibcast\(x"),
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


def horovod(world: MPI.Intracomm) -> SimpleNamespace:
    """The calls of horovod.torch that the page names."""
    rank, size = world.rank, world.size
    sums: dict[str, Any] = {"sum": np.sum, "average": np.mean, "max": np.max}

    def everybodys(x: Any) -> np.ndarray[Any, Any]:
        return np.stack(world.allgather(x.numpy()))

    def allreduce(x: Any, op: str = "average") -> Any:
        return torch.from_numpy(sums[op](everybodys(x), axis=0))

    def broadcast(x: Any, root_rank: int) -> Any:
        return torch.from_numpy(everybodys(x)[root_rank])

    return SimpleNamespace(
        Sum="sum",
        Average="average",
        Max="max",
        rank=world.Get_rank,
        size=world.Get_size,
        barrier=world.barrier,
        local_rank=lambda: world.Split_type(MPI.COMM_TYPE_SHARED).rank,
        allreduce=allreduce,
        allreduce_=lambda x, op="average": x.copy_(allreduce(x, op)),
        allreduce_async_=lambda x, op="average": x.copy_(allreduce(x, op)),
        synchronize=lambda handle: handle,
        broadcast=broadcast,
        broadcast_=lambda x, root_rank: x.copy_(broadcast(x, root_rank)),
        allgather=lambda x: torch.from_numpy(np.concatenate(everybodys(x))),
        reducescatter=lambda x, op="average": allreduce(x, op).chunk(size)[rank],
        alltoall=lambda x: torch.cat([torch.from_numpy(each).chunk(size)[rank] for each in everybodys(x)]),
        broadcast_object=lambda obj, root_rank: world.bcast(obj, root_rank),
        allgather_object=world.allgather,
    )


@pytest.mark.mpi(min_size=2)
def test_both_sides_leave_the_same_as_horovod() -> None:
    before, rows = rows_of("migrate_horovod.md")
    ours: dict[str, Any] = {}
    exec(before, ours)
    try:
        theirs = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in ours.items()}
        theirs["hvd"] = horovod(MPI.COMM_WORLD)
        assert len(rows) > 15
        for of_horovod, of_mpicoll in rows:
            exec(of_horovod, theirs)
            exec(of_mpicoll, ours)
            assert left_by(ours) == left_by(theirs), of_mpicoll
    finally:
        ours["dist"].destroy_process_group()


# -- each function of the API pages has an example, which all ranks can run --

REFERENCE = Path(__file__).parents[2] / "docs/reference"
FUNCTION = re.compile(r"^\.\. auto(?:method|function):: mpicoll\.([\w.]+)", re.MULTILINE)


def names() -> Iterator[str]:
    for page in ("api.rst", "api_torch.rst"):
        yield from FUNCTION.findall((REFERENCE / page).read_text())
    yield from (f"torch.nn.{name}" for name in nn.__all__)
    yield from (f"torch.hooks.{name}" for name in vars(hooks) if name.endswith("_compress_hook"))


def test_each_function_has_an_example() -> None:
    assert [name for name in names() if not calls.example_of(name)] == []


@pytest.mark.mpi(min_size=2)
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in names():
        example = calls.example_of(name)
        compile(example, name, "exec")
        if name in calls.NOT_RUN or (name == "Communicator.shared" and not SHARED):
            continue
        known: dict[str, Any] = {}
        exec(calls.BEFORE_TORCH if name.startswith("torch.") else calls.BEFORE, known)
        try:
            exec(example, known)
        finally:
            if name.startswith("torch."):
                dist.destroy_process_group()
            else:
                known["comm"].free()
