"""What `make test` runs where, and that it ends a launch that hangs, and none that is slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import matrix
from tests.jobs.jobs import script, until


def test_every_line_of_the_table_is_of_a_file_or_a_folder() -> None:
    assert [name for name in matrix.TABLE if not (matrix.HERE.parent / name).exists()] == []


def test_every_file_runs_somewhere() -> None:
    placed = {file for tests in matrix.places((0, 1), False).values() for file in tests}
    assert all(file.startswith(("tests/cluster/", "tests/nodes/")) for file in matrix.files() if file not in placed)
    assert len(placed) > 50


def test_what_runs_with_all_alone() -> None:
    file, usual, whole = "tests/ranks/torch/test_groups.py", *(matrix.places((0,), every) for every in (False, True))
    assert [where for where, tests in usual.items() if file in tests] == [2]
    assert [where for where, tests in whole.items() if file in tests] == [1, 2, 4]
    assert matrix.MORE not in whole
    for where, tests in usual.items():
        assert set(tests) <= set(whole[where])


class Slow:
    """A process whose every second takes a hundred, and in which a test ends in each of the first ``tests``."""

    def __init__(self, notes: Path, tests: int, hangs: bool) -> None:
        self.notes, self.tests, self.hangs = notes, tests, hangs
        self.now = 0.0

    def wait(self, seconds: float) -> int:
        self.now += 100 * seconds
        if self.tests == 0 and not self.hangs:
            return 0
        if self.tests:
            self.tests -= 1
            with open(self.notes / "1", "a") as file:
                file.write("passed it\n")
        raise subprocess.TimeoutExpired("it", seconds)


@pytest.mark.parametrize("hangs", [False, True])
def test_only_silence_ends_a_launch(hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Slow(tmp_path, 50, hangs)
    monkeypatch.setattr(matrix, "time", SimpleNamespace(monotonic=lambda: process.now))
    assert matrix.wait(cast(Any, process), tmp_path) == (None if hangs else 0)
    assert process.now >= 5000 + (matrix.SILENCE if hangs else 0)


HANGS = """
    import os, time
    with open(os.path.join(os.environ["MPICOLL_OUTCOMES"], "0"), "w") as notes:
        print("running a", "passed a", "running b", sep="\\n", file=notes)
    time.sleep(1000)
"""


def test_what_is_said_of_a_launch_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait(process: Any, notes: Path) -> None:
        until(lambda: "running b" in "".join(file.read_text() for file in notes.iterdir()), "it runs b")

    monkeypatch.setattr(matrix, "wait", wait)
    counts = matrix.launch("a launch", [sys.executable, script(tmp_path, HANGS)], selected=False)
    assert (counts["passed"], counts["failed"]) == (1, 1)
    said = capsys.readouterr().out
    assert "a launch: 1 passed, 1 failed, 0 skipped in " in said
    assert f"no test began or ended for {matrix.SILENCE:.0f} s. Last seen:\nrank 0: running b\n" in said
