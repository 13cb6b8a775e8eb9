"""What `make test` runs where, and that it ends a launch that hangs, and none that is slow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.jobs import script

LIVES = """
    import os, sys, time
    with open(os.path.join(os.environ["MPICOLL_OUTCOMES"], "0"), "w", buffering=1) as notes:
        for test in range(16):
            print(f"running test{test}", f"passed test{test}", sep="\\n", file=notes)
            time.sleep(0.25)
        time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imported as it is run: with what lies beside it."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    import matrix

    return matrix


def test_every_line_of_the_table_is_of_a_file_or_a_folder(matrix: Any) -> None:
    assert [name for name in matrix.TABLE if not (matrix.HERE.parent / name).exists()] == []


def test_every_file_runs_somewhere(matrix: Any) -> None:
    placed = {file for tests in matrix.places((0, 1)).values() for file in tests}
    assert all(file.startswith("tests/slurm/") for file in matrix.files() if file not in placed)
    assert len(placed) > 50


@pytest.mark.parametrize(("silent", "found"), [(0, {"passed": 16}), (1000, {"passed": 16, "failed": 1})])
def test_a_launch_is_ended_when_it_falls_silent(
    silent: int, found: dict[str, int], matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """It lasts longer than the silence that is allowed."""
    monkeypatch.setattr(matrix, "SILENCE", 3.0)
    counts = matrix.launch("a launch", [sys.executable, script(tmp_path, LIVES), str(silent)], selected=False)
    assert {outcome: counts[outcome] for outcome in ("passed", "failed") if counts[outcome]} == found
    assert ("no test began or ended for 3 s. Last seen:\nrank 0: passed test15" in capsys.readouterr().out) == bool(
        silent
    )
