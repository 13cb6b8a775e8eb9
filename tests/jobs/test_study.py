"""The study of MPI and NCCL, on CPUs: all of it runs, goes on where it was cut, and says what failed. And the benchmark
of training steps."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.jobs import NEEDS_TORCH, REPOSITORY, Done, done, python, run

pytestmark = pytest.mark.any_mpi

STUDY = str(REPOSITORY / "benchmarks" / "mpi_vs_nccl" / "study.py")
TEMPLATE = str(REPOSITORY / "slurm" / "mpi_vs_nccl.sbatch")
COMMON = """
python=({python}) DEVICE=cpu tasks=1
mkdir -p "$RESULTS"
launch() {{ "${{python[@]}}" "$@"; }}
"""
QUICK = ("--max", "1K", "--factor", "128", "--seconds", "0.01")


def study(folder: Path, *words: str) -> Done:
    return python(STUDY, "--device", "cpu", "--out", str(folder), "--collectives", "allreduce", *words)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="gloo and bfloat16 arrays are torch's")
def test_a_study_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    study(tmp_path, *QUICK, "--dtypes", "float32").good("1 of 1: allreduce-float32: done, ")

    study(tmp_path, *QUICK).good("1 of 2: allreduce-float32: is there", "2 of 2: allreduce-bfloat16: done, ")
    report = (tmp_path / "report.md").read_text()
    assert "| collective | mpicoll | mpi | nccl | gloo |" in report
    assert report.count("| allreduce |") == 6
    assert report.count("N/A") == 9  # NCCL in each table, and MPI in those of bfloat16
    assert "- mpi: MPI has no datatype for bfloat16 (allreduce of bfloat16)" in report
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {(r["backend"], r["type"]) for r in rows} >= {
        ("mpicoll", "bfloat16"),
        ("mpi", "float32"),
        ("gloo", "float32"),
    }
    assert {r["wrong"] for r in rows} == {0}

    cut = tmp_path / "parts" / "allreduce-float32.json"
    whole = cut.read_text()
    cut.write_text(whole.replace('"interrupted": false', '"interrupted": true'))
    assert cut.read_text() != whole
    study(tmp_path, *QUICK, "--deadline", "0.01").bad(
        "1 of 2: allreduce-float32: no end within 0.01 s",
        "2 of 2: allreduce-bfloat16: is there",
        "# allreduce-float32 has no record",
        code=1,
    )
    assert "Without a record: allreduce-float32." in (tmp_path / "report.md").read_text()
    other = study(tmp_path, *QUICK, "--max", "2K", "--dtypes", "bfloat16", "--deadline", "0.01")
    assert "1 of 1: allreduce-bfloat16: no end within" in other.output, "a record of other settings does not count"


def test_a_study_that_measures_nothing(tmp_path: Path) -> None:
    study(tmp_path, "--dtypes", "float32", "--max", "3").bad(
        "1 of 1: allreduce-float32: ended with 2", "mpicoll: comparison: folder: expected records", code=1
    )
    assert "--max: expected a multiple of" in (tmp_path / "parts" / "allreduce-float32.txt").read_text()


@pytest.mark.slow
def test_the_template_goes_on_where_it_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``compare`` without Slurm: a part counts if it is complete, and of the same settings."""
    (tmp_path / "common.sh").write_text(COMMON.format(python=shlex.quote(sys.executable)))
    given = {
        "MPICOLL_SLURM": str(tmp_path), "RESULTS": str(tmp_path), "COLLECTIVES": "bcast", "DTYPES": "float32",
        "BACKENDS": "mpicoll,nccl", "SIZES": "--max 8", "SECONDS_A_SIZE": "0.01",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    record = tmp_path / "parts" / "bcast-float32.json"

    def begun() -> str:
        done("bash", TEMPLATE).good()
        found = json.loads(record.read_text())
        assert found["settings"]["backends"] == ["mpicoll"]
        assert not found["interrupted"]
        return str(found["started"])

    first = begun()
    assert begun() == first
    record.write_text(record.read_text().replace('"interrupted": false', '"interrupted": true'))
    second = begun()
    assert second != first
    monkeypatch.setenv("SIZES", "--max 16")
    assert begun() != second


@NEEDS_TORCH
def test_every_backend_has_a_row(tmp_path: Path) -> None:
    record, picture = tmp_path / "record.json", tmp_path / "picture.png"
    words = ["--sizes", "0.1", "--buckets", "0.05", "--seconds", "0", "--json", str(record)]
    run(2, str(REPOSITORY / "benchmarks" / "ddp_step.py"), *words, env={"CUDA_VISIBLE_DEVICES": ""}).good()
    found = json.loads(record.read_text())
    ways = ("mpicoll, in line", "mpicoll, thread")
    backends = ["gloo", "mpicoll", *(f"{way}{wire}" for way in ways for wire in ("", ", 10 Gb/s"))]
    assert [row["backend"] for row in found["rows"]] == backends
    for row in found["rows"]:
        assert sum(row["buckets"]) == pytest.approx(1e6 * row["gradient_mb"], rel=0.1)
        assert len(row["steps_ms"]) == 20
        together = row["computation_ms"] + row["communication_ms"]
        assert row["hidden"] == pytest.approx((together - row["step_ms"]) / row["communication_ms"], rel=0.05, abs=0.05)
        if "10 Gb/s" in row["backend"]:
            assert row["communication_ms"] > 1e3 * 8e-10 * sum(row["buckets"])
    assert found["environment"]["ranks"] == 2
    assert str(tmp_path) not in record.read_text()
    if find_spec("matplotlib"):
        python(str(REPOSITORY / "benchmarks" / "ddp_picture.py"), str(record), str(picture)).good()
        assert picture.read_bytes().startswith(b"\x89PNG")
