"""``mpicoll simulate``: the table and the files. And --nodes and --placement, which say where ranks are."""

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


def messages(capsys: Capture, *options: str) -> int:
    """What a proof counts."""
    assert main(["verify", "barrier", "two_level", "-n", "8", *options]) == 0
    return int(capsys.readouterr().out.split()[-3])


def test_verify_proves_where_the_ranks_are(capsys: Capture) -> None:
    assert messages(capsys, "--nodes", "1") == 2 * 24  # twice the barrier of all
    assert messages(capsys, "--nodes", "8") == 24
    assert messages(capsys, "--nodes", "2") == 2 * (8 + 8) + 2
    assert messages(capsys, "--nodes", "0,1,1,1,1,1,1,1") == 2 * 7 * 3 + 2
    assert main(["verify", "allreduce", "two_level", "-n", "1:5", "--nodes", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[2] == "3:5"  # others do not fill the nodes


def test_draw_says_where_the_ranks_are(tmp_path: Path) -> None:
    file = tmp_path / "drawn.svg"
    for options, nodes in ((), "0 1 | 2 3"), (("--nodes", "0,1,0,1"), "0 2 | 1 3"):
        assert main(["draw", "bcast", "two_level", "-n", "4", "-o", str(file), *options]) == 0
        assert f"nodes {nodes}" in file.read_text()


def test_simulate_places_the_ranks_on_the_machine(tmp_path: Path) -> None:
    """Where the ranks are dealt out, each message of a ring goes between nodes, and two-level algorithms win."""
    fastest = {}
    for how in ("block", "cyclic"):
        record = tmp_path / how
        options = ["--machine", "ethernet", "--algorithms", "two_level,ring", "--sizes", "16M", "--json", str(record)]
        assert main(["simulate", "allreduce", "-n", "8", "--nodes", "2", "--placement", how, *options]) == 0
        found = json.loads(record.read_text())
        assert found["machine"]["levels"][0]["ranks"] == 4
        fastest[how] = found["seconds"]
    ring, two_level = ({how: seconds[name][0] for how, seconds in fastest.items()} for name in ("ring", "two_level"))
    assert two_level["block"] == pytest.approx(two_level["cyclic"], rel=0.01)
    assert ring["cyclic"] > 1.5 * two_level["cyclic"]
    assert ring["cyclic"] > 1.5 * ring["block"]
