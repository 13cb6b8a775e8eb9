"""``mpicoll simulate``: the table, the files, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mpicoll import algorithms
from mpicoll.analysis.cost.presets import MACHINES
from mpicoll.cli import main

Capture = pytest.CaptureFixture[str]


def simulated(capsys: Capture, words: str) -> str:
    """What ``mpicoll simulate`` prints."""
    assert main(["simulate", *words.split()]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_fastest_is_marked(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    shown = simulated(capsys, f"all_reduce -n 64 --machine ib-h100 --sizes 1K:1G --json {file}")
    found = json.loads(file.read_text())
    assert found["sizes"] == [1 << k for k in range(10, 31)]
    assert list(found["seconds"]) == [a.name for a in algorithms.algorithms("allreduce") if not a.declines(64, 0)]
    assert found["machine"] == json.loads(json.dumps(MACHINES["ib-h100"].as_dict()))
    for i, row in enumerate(shown.splitlines()[2 : 2 + 21]):
        times = {name: t[i] for name, t in found["seconds"].items()}
        cells = re.findall(r"\d\S* (?:us|ms|s)\*?", row)
        (marked,) = [name for name, cell in zip(times, cells, strict=True) if cell.endswith("*")]
        assert times[marked] == min(times.values())
        (fastest,) = [f["algorithm"] for f in found["fastest"] if f["first"] <= found["sizes"][i] <= f["last"]]
        assert fastest == marked
    assert all(f"{f['algorithm']}" in shown for f in found["fastest"])
    assert len({f["algorithm"] for f in found["fastest"]}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_chart(suffix: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"crossover.{suffix}"
    simulated(capsys, f"allreduce -n 16 --sizes 1K:1M --plot {file}")
    assert file.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])


def test_a_machine_from_a_file(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "mine.json"
    level = {"name": "all", "ranks": 8, "latency": 1.0, "gap": 0.0, "overhead": 0.0, "ports": 1}
    machine = {"name": "mine", "source": "a test", "levels": [level], "reduction": 0.0, "copy": 0.0}
    file.write_text(json.dumps(machine))
    assert "3 s*" in simulated(capsys, f"bcast -n 8 --machine {file} --sizes 8 --algorithms binomial_tree")
    assert main(["simulate", "bcast", "-n", "9", "--machine", str(file)]) == 2
    assert "-n: expected at most the 8 ranks of mine; given 9" in capsys.readouterr().err
    file.write_text(json.dumps({**machine, "levels": [{**level, "latency": -1.0}]}))
    assert main(["simulate", "bcast", "-n", "8", "--machine", str(file)]) == 2
    assert "machine.levels[0].latency: expected seconds, at least 0; given -1.0" in capsys.readouterr().err
