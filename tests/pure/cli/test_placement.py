"""--nodes and --placement, which say where ranks are: of verify, draw and simulate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mpicoll.cli import main

Capture = pytest.CaptureFixture[str]


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
