"""The benchmark of training steps runs, checks itself, and writes what it says."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.jobs import NEEDS_TORCH, REPOSITORY, python, run

pytestmark = [NEEDS_TORCH, pytest.mark.any_mpi]


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
