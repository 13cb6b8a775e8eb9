"""What is made from the benchmark's records: the record itself again, and a table and a picture by number of nodes."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mpicoll.bench import plot, scaling
from mpicoll.bench.records import Report, columns, load, write_json

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

RECORDS = Path(__file__).parents[3] / "benchmarks" / "records"


def exit_code(program: str) -> object:
    with pytest.raises(SystemExit) as e:
        runpy.run_path(program, run_name="__main__")
    return e.value.code


@pytest.fixture
def record() -> Report:
    return load(RECORDS / "allreduce-2ranks-openmpi.json")


@pytest.mark.parametrize("name", ["allreduce-short-2ranks-mpich.json", "allreduce-short-2ranks-openmpi.json"])
def test_a_record_that_is_read_and_written_is_the_same(name: str, tmp_path: Path) -> None:
    write_json(load(RECORDS / name), tmp_path / name)
    assert (tmp_path / name).read_bytes() == (RECORDS / name).read_bytes()


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}', '{"schema": "mpicoll-bench/1"}'])
def test_not_a_record(text: str, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    (tmp_path / "file").write_text(text)
    monkeypatch.setattr(sys, "argv", ["plot", str(tmp_path / "file"), str(tmp_path / "picture.png")])
    assert exit_code(plot.__file__) == 2
    assert "expected a file that `mpicoll bench --json` wrote; given" in capsys.readouterr().err


def of_nodes(record: Report, nodes: int) -> Report:
    """The record as if it were measured on so many nodes, and took as many times as long."""
    rows = [replace(row, p50_us=row.p50_us * nodes) for row in record.rows]
    return replace(record, rows=rows, environment={**record.environment, "nodes": nodes, "ranks": 2 * nodes})


@pytest.mark.parametrize("expected", [2, 3])
def test_scaling_from_files(expected: int, record: Report, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    """Records that are there are drawn. If some are missing, the program says so and fails."""
    pytest.importorskip("matplotlib")
    for nodes in (1, 2):
        write_json(of_nodes(record, nodes), tmp_path / f"nodes-{nodes}.json")
    monkeypatch.setattr(sys, "argv", ["scaling", str(tmp_path), str(expected)])
    assert exit_code(scaling.__file__) == (0 if expected == 2 else 1)
    said = capsys.readouterr()
    assert "1 node, 2 ranks" in said.out
    assert ("2 of 3 records are there: nodes-1.json nodes-2.json" in said.err) == (expected == 3)
    found = json.loads((tmp_path / "scaling.json").read_text())["points"]
    assert len(found) == len(said.out.splitlines()[1:]) * 2
    assert found[0].keys() - columns(record.rows[0]).keys() == {"nodes", "ranks"}
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
