"""What `make test` runs where, and what it says of a launch that hangs."""

from __future__ import annotations

import sys

import pytest

from tests import matrix

pytestmark = pytest.mark.any_mpi


def test_every_file_runs_somewhere() -> None:
    somewhere = {file for tests in matrix.placed((0, 1), False).values() for file in tests}
    assert {file.split("/")[1] for file in matrix.files() if file not in somewhere} == {"cluster", "nodes"}
    assert all((matrix.HERE.parent / folder).is_dir() for folder in matrix.FOLDERS)


def test_what_is_said_of_a_launch_that_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "SILENCE", 0.0)
    with matrix.begun([sys.executable, "-c", "import time; time.sleep(1000)"]) as it:
        (it.notes / "0").write_text("running a\npassed a\nrunning b\n")
        counts = it.ended("a launch", selected=False)
    assert (counts["passed"], counts["failed"]) == (1, 1)
    said = capsys.readouterr().out
    assert "a launch: 1 passed, 1 failed, 0 skipped in " in said
    assert "no test began or ended for 0 s. Last seen:\nrank 0: running b\n" in said
