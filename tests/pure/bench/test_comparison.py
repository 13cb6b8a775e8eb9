"""What is made of many records: the report of a comparison, and a table and a picture by number of nodes."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from mpicoll.bench import comparison, scaling
from mpicoll.bench.records import SCHEMA

ENVIRONMENT = {
    **dict.fromkeys(("nccl", "torch", "mpi4py", "numpy", "mpicoll", "python", "cpu", "mpi"), "1.0"),
    **dict.fromkeys(("cores", "nodes", "gpu_sharing"), 1),
    "ranks": 2, "binding": ["0", "1"], "gpus": ["A GPU", "A GPU"], "oversubscribed": False, "overload": [],
    "mpi_takes_gpu_memory": True,
}  # fmt: skip

Record = dict[str, Any]
Row = dict[str, Any]
"""As they are written."""


def row(backend: str, size: int, us: float, **other: Any) -> Row:
    found = {
        "collective": "allreduce", "type": "float32", "placement": "in-place", "redop": "sum", "route": "native",
        "wrong": 0, "comparable": True, "caveat": "", "time_us": us, "p50_us": us, "times_us": [us],
        "busbw_gbs": size / us / 1e3, "algbw_gbs": size / us / 1e3, "p99_us": us, "calls": 1, "count": size // 4,
        "root": None, "ratio": None,
    }  # fmt: skip
    return {**found, "backend": backend, "size": size, **other}


def record(rows: list[Row], notes: list[dict[str, Any]] | None = None, **environment: Any) -> Record:
    return {
        "schema": SCHEMA, "command": "mpicoll bench", "started": "2026-01-01", "interrupted": False,
        "settings": {"dtype": rows[0]["type"], "backends": ["mpicoll", "mpi", "nccl"]},
        "environment": ENVIRONMENT | environment, "not_run": notes or [], "rows": rows,
    }  # fmt: skip


ROWS = [
    row("mpicoll", 8, 10.0, route="staged:native"),
    row("mpicoll", 1 << 20, 200.0, route="staged:ring"),
    row("mpi", 8, 5.0),
    row("mpi", 1 << 20, 50.0),
    row("mpi", 1 << 20, 1.0, placement="out-of-place"),
    row("nccl", 8, 20.0, route="nccl"),
    row("nccl", 1 << 20, 100.0, route="nccl"),
]


def kept(folder: Path, **records: Record) -> Path:
    """The folder, with these parts in it."""
    (folder / comparison.PARTS).mkdir()
    for name, found in records.items():
        (folder / comparison.PARTS / f"{name}.json").write_text(json.dumps(found))
    return folder


def text(folder: Path) -> str:
    return comparison.text(comparison.gather(folder), [])


def cells(report: str, section: str) -> list[str]:
    """The cells of the first row of a section's table."""
    (line,) = [x for x in report.partition(f"## {section}\n")[2].partition("\n## ")[0].splitlines() if "| allr" in x]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_figures_and_their_ratios_to_nccl(tmp_path: Path) -> None:
    """Of the usual placement: the other one does not count, even if it is faster."""
    report = text(kept(tmp_path, one=record(ROWS)))
    assert report.startswith("# mpicoll, MPI and NCCL on the same GPUs\n")
    assert cells(report, "float32: latency") == [
        "allreduce", "10.0 at 8 (0.50)", "5.0 at 8 (0.25)", "20.0 at 8 (1.00)"
    ]  # fmt: skip
    assert cells(report, "float32: bandwidth") == [
        "allreduce", "5.24 at 1M (0.50)", "20.97 at 1M (2.00)", "10.49 at 1M (1.00)"
    ]  # fmt: skip
    assert "The number in brackets is the figure divided by NCCL's." in report
    assert cells(report, "float32: what carried out the calls") == [
        "allreduce", "staged:native, staged:ring from 1M", "native", "nccl"
    ]  # fmt: skip


def test_a_backend_that_is_not_here_says_why(tmp_path: Path) -> None:
    notes: list[dict[str, Any]] = [
        {"backend": "nccl", "collective": None, "placement": None, "reason": "there is no GPU"},
        {"backend": "mpi", "collective": "scan", "placement": "out-of-place", "reason": "not today"},
        {"backend": "mpi", "collective": "allreduce", "placement": "out-of-place", "reason": "only in place"},
    ]
    rows = [r for r in ROWS if r["backend"] != "nccl"]
    report = text(kept(tmp_path, one=record(rows, notes, gpus=[], mpi_takes_gpu_memory=None)))
    assert report.startswith("# mpicoll and MPI on CPUs\n")
    assert cells(report, "float32: latency")[-1] == "N/A"
    assert "NCCL was not measured" in report
    missing = report.partition("## What did not run\n")[2].partition("##")[0]
    assert missing.split("\n")[1:3] == ["- nccl: there is no GPU", "- mpi: not today (scan of float32)"]
    assert "only in place" not in missing


@pytest.mark.slow
def test_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    kept(tmp_path, one=record(ROWS))
    assert comparison.report(tmp_path) == 0
    assert (tmp_path / "float32.png").read_bytes().startswith(b"\x89PNG")
    assert "![float32](float32.png)" in (tmp_path / "report.md").read_text()
    found = json.loads((tmp_path / "results.json").read_text())
    assert [r["p50_us"] for r in found["rows"]] == [r["p50_us"] for r in ROWS]
    assert "times_us" not in found["rows"][0]
    assert found["parts"]["one"]["environment"] == ENVIRONMENT
    assert "# 0 wrong elements in 7 measurements of 1 benchmarks" in capsys.readouterr().out


@pytest.mark.parametrize("bad", ["wrong", "failed"])
def test_what_is_wrong_is_in_the_exit_code(bad: str, tmp_path: Path) -> None:
    kept(tmp_path, one=record([row("mpi", 8, 1.0, wrong=int(bad == "wrong"))]))
    if bad == "failed":
        (tmp_path / comparison.PARTS / "two.txt").touch()
    assert comparison.report(tmp_path) == 1


Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def exit_code(program: str) -> object:
    with pytest.raises(SystemExit) as e:
        runpy.run_path(program, run_name="__main__")
    return e.value.code


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}', '{"schema": "mpicoll-bench/1"}'])
def test_not_a_record(text: str, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    (tmp_path / "nodes-1.json").write_text(text)
    monkeypatch.setattr(sys, "argv", ["scaling", str(tmp_path), "1"])
    assert exit_code(scaling.__file__) == 2
    assert "expected a file that `mpicoll bench --json` wrote; given" in capsys.readouterr().err


@pytest.mark.parametrize("expected", [2, 3])
def test_scaling_from_files(expected: int, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    """Records that are there are drawn. If some are missing, the program says so and fails."""
    pytest.importorskip("matplotlib")
    for nodes in (1, 2):
        rows = [{**each, "p50_us": each["p50_us"] * nodes} for each in ROWS]
        (tmp_path / f"nodes-{nodes}.json").write_text(json.dumps(record(rows, nodes=nodes, ranks=2 * nodes)))
    monkeypatch.setattr(sys, "argv", ["scaling", str(tmp_path), str(expected)])
    assert exit_code(scaling.__file__) == (0 if expected == 2 else 1)
    said = capsys.readouterr()
    assert "1 node, 2 ranks" in said.out
    assert ("2 of 3 records are there: nodes-1.json nodes-2.json" in said.err) == (expected == 3)
    found = json.loads((tmp_path / "scaling.json").read_text())["points"]
    assert len(found) == len(said.out.splitlines()[1:]) * 2
    assert found[0].keys() - ROWS[0].keys() == {"nodes", "ranks"}
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
