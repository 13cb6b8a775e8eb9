"""docs/how-to/migrate_mpi4py.md: both sides of each row leave the same in every variable, on every rank."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpicoll

PAGE = (Path(__file__).parents[2] / "docs/how-to/migrate_mpi4py.md").read_text()
ROW = re.compile(r"^\| `(.*?)` \| `(.*?)` \|$", re.MULTILINE)
BEFORE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def plain(value: Any) -> Any:
    """What can be compared, of an array, a communicator or anything else."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (MPI.Comm, mpicoll.Communicator)):
        return (value.rank, value.size) if value else None  # mpi4py's null communicator is false
    return value


def left_by(names: dict[str, Any]) -> dict[str, Any]:
    """The variables of a program; requests and modules are no results."""
    skipped = {"__builtins__", "world", "comm", "r"}
    return {k: plain(v) for k, v in names.items() if k not in skipped and not isinstance(v, ModuleType)}


def test_a_name_of_mpi4pys_is_answered_with_its_row() -> None:
    """Of each method in the left column that a Communicator does not have."""
    rows = {re.findall(r"world\.([A-Z]\w*)\(", a)[0]: b for a, b in ROW.findall(PAGE) if re.search(r"world\.[A-Z]", a)}
    with mpicoll.Communicator() as comm:
        for name in rows:
            with pytest.raises(AttributeError, match=f"no attribute '{name}': mpicoll's is ") as caught:
                getattr(comm, name)
            said = str(caught.value).partition("mpicoll's is comm.")[2].partition(" (")[0].partition("(")[0]
            assert any(f"comm.{said}" in b for a, b in ROW.findall(PAGE) if f"world.{name}(" in a), (name, said)
        for name in ("Get_size", "Dup", "dup"):
            with pytest.raises(AttributeError, match="mpicoll's is comm"):
                getattr(comm, name)
        with pytest.raises(AttributeError, match="keep mpi4py's call"):
            comm.Create_cart  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
            comm.nonsense  # type: ignore[attr-defined]  # noqa: B018
        assert not hasattr(comm, "__cuda_array_interface__")


@pytest.mark.mpi(min_size=2)
def test_both_sides_leave_the_same() -> None:
    (before,) = BEFORE.findall(PAGE)
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    exec(before, theirs)
    exec(before, ours)
    rows = ROW.findall(PAGE)
    assert len(rows) > 40
    for of_mpi4py, of_mpicoll in rows:
        exec(of_mpi4py, theirs)
        exec(of_mpicoll, ours)
        assert left_by(ours) == left_by(theirs), of_mpicoll
