"""What is made from the benchmark's records: a summary, and a table and a picture by number of nodes."""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from math import exp, log
from pathlib import Path

import pytest

from mpicoll.bench.report import record as records
from mpicoll.bench.report import scaling, summary
from mpicoll.errors import ArgumentError

RECORD = Path(__file__).parents[3] / "benchmarks" / "records" / "allreduce-2ranks-openmpi.json"


@pytest.fixture
def record() -> records.Record:
    return records.load(RECORD)


def test_summary(record: records.Record) -> None:
    *_, heads, line = summary.lines(record)
    backends = list(dict.fromkeys(row["backend"] for row in record["rows"]))
    assert heads.split() == ["#", "collective", *backends, "smallest", "largest"]
    name, *rest = line.split()[1:]
    assert name == "allreduce"
    for backend, found in zip(backends, rest, strict=False):
        ratios = [row["ratio"] for row in record["rows"] if row["backend"] == backend and row["ratio"]]
        assert float(found) == pytest.approx(exp(sum(map(log, ratios)) / len(ratios)), abs=0.005)
    for size in (8, 64 << 20):
        least = min(row["p50_us"] for row in record["rows"] if row["size"] == size)
        assert f"at {'8' if size == 8 else '64M'}: {least:.1f} us" in line


def test_summary_of_nothing(record: records.Record) -> None:
    assert summary.lines({**record, "rows": []}) == ["# summary: nothing was measured"]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}'])
def test_not_a_record(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text(text)
    monkeypatch.setattr(sys, "argv", ["summary", str(tmp_path / "file")])
    assert summary.main() == 2
    assert "expected a file that `mpicoll bench --json` wrote; given" in capsys.readouterr().err


def of_nodes(record: records.Record, nodes: int) -> records.Record:
    """The record as if it were measured on so many nodes, and took as many times as long."""
    found = deepcopy(record)
    found["environment"] |= {"nodes": nodes, "ranks": 2 * nodes}
    for row in found["rows"]:
        row["p50_us"] *= nodes
    return found


def test_scaling(record: records.Record) -> None:
    points = scaling.gather([of_nodes(record, nodes) for nodes in (4, 1, 2)])
    backends = {row["backend"] for row in record["rows"]}
    assert len(points) == 3 * 2 * len(backends)
    mpi = [p for p in points if (p["backend"], p["size"]) == ("mpi", 8)]
    assert [(p["nodes"], p["ranks"]) for p in mpi] == [(1, 2), (2, 4), (4, 8)]
    assert [p["p50_us"] / mpi[0]["p50_us"] for p in mpi] == pytest.approx([1, 2, 4])
    head, *rows = scaling.table(points)
    assert head.endswith("4 nodes, 8 ranks")
    assert len(rows) == 2 * len(backends)


def test_two_records_of_as_many_nodes(record: records.Record) -> None:
    with pytest.raises(ArgumentError, match="expected each of another number of nodes; given 1, 2, 2"):
        scaling.gather([of_nodes(record, nodes) for nodes in (2, 1, 2)])


@pytest.mark.parametrize("expected", [2, 3])
def test_scaling_from_files(
    expected: int,
    record: records.Record,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Records that are there are drawn. If some are missing, the program says so and fails."""
    pytest.importorskip("matplotlib")
    for nodes in (1, 2):
        (tmp_path / f"nodes-{nodes}.json").write_text(json.dumps(of_nodes(record, nodes)))
    monkeypatch.setattr(sys, "argv", ["scaling", str(tmp_path), str(expected)])
    assert scaling.main() == (0 if expected == 2 else 1)
    said = capsys.readouterr()
    assert "1 node, 2 ranks" in said.out
    assert ("2 of 3 records are there: nodes-1.json nodes-2.json" in said.err) == (expected == 3)
    assert len(json.loads((tmp_path / "scaling.json").read_text())["points"]) == len(said.out.splitlines()[1:]) * 2
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_scaling_without_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scaling", str(tmp_path), "2"])
    assert scaling.main() == 2
    assert "expected nodes-*.json in it; given" in capsys.readouterr().err
