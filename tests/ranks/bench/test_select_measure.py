"""benchmarks/select_measure.py on one short vector: the record says where it was made, and can be continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from benchmarks import select_measure
from benchmarks.select_table import table
from mpicoll.bench.measuring.environment import environment
from mpicoll.calls import measured
from mpicoll.machine.library import library

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of rank 0 that all ranks know, and little to measure."""
    folder = Path(MPI.COMM_WORLD.bcast(str(tmp_path)))
    known = {"fingerprint": "A of 1", "cpu": "A (R)", "shared_memory": True, "huge_pages": "madvise"}
    monkeypatch.setattr(select_measure, "environment", lambda session: environment(session) | known)
    monkeypatch.setattr(select_measure, "RECORDS", folder)
    monkeypatch.setattr(select_measure, "SIZES", (1 << 14,))
    monkeypatch.setattr(select_measure, "SECONDS", 0.001)
    return folder


def test_a_record_is_gone_on_with(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = MPI.COMM_WORLD
    select_measure.Measuring(world).run(["reduce:max"])
    select_measure.Measuring(world).run(["reduce:max", "bcast"])
    assert capsys.readouterr().out.count("reduce:max 16K") == (2 if world.rank == 0 else 0)
    world.Barrier()
    (path,) = records.iterdir()
    assert path.name.startswith("select-a-r-")
    assert path.name.endswith(f"-{library().replace(' ', '').lower()}.json")
    record: dict[str, Any] = json.loads(path.read_text())
    assert (record["fingerprint"], record["mpi"]) == ("A of 1", library())
    found = {(row["ranks"], row["case"], row["size"], row["pages"]) for row in record["rows"]}
    assert found == {
        (world.size, case, 1 << 14, pages) for case in ("reduce:max", "bcast") for pages in ("huge", "small")
    }
    assert all(
        set(row["p50_us"]) == {"exchange", "rabenseifner", "chain", "binomial_tree"} for row in record["rows"][:2]
    )
    assert [s.ranks for s in measured.sections(table([record]))] == [world.size]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"fingerprint": "unknown"}, "which CPU"),
        ({"shared_memory": False}, "no memory"),
        ({"huge_pages": "never"}, "huge"),
    ],
)
def test_machines_of_which_a_record_would_tell_nothing(
    records: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], expected: str
) -> None:
    monkeypatch.setattr(select_measure, "environment", lambda session: environment(session) | said)
    with pytest.raises(SystemExit, match=f"nothing was measured: .*{expected}"):
        select_measure.Measuring(MPI.COMM_WORLD)


def test_pages() -> None:
    """This tests what the system is asked for. Whether it gives huge pages is checked while measuring."""
    for new in select_measure.MEMORY.values():
        array = new(select_measure.HUGE)
        array[:] = 7
        assert (array.size, array.dtype, int(array.sum(dtype=np.int64))) == (1 << 22, np.uint8, 7 << 22)
        assert array.ctypes.data % 4096 == 64
