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

pytestmark = pytest.mark.any_mpi


def test_every_file_runs_somewhere() -> None:
    somewhere = {file for tests in matrix.placed((0, 1), False).values() for file in tests}
    assert {file.split("/")[1] for file in matrix.files() if file not in somewhere} == {"cluster", "nodes"}
    assert all((matrix.HERE.parent / folder).is_dir() for folder in matrix.FOLDERS)


@pytest.mark.parametrize(
    ("file", "usual", "everywhere"),
    [
        ("ranks/test_libraries.py", ({2}, {3}), ({2}, {3})),
        ("ranks/test_random.py", ({1, 2, 4}, {3}), ({1, 2, 3, 4}, {1, 2, 3})),
        ("ranks/torch/test_groups.py", ({2}, {3}), ({1, 2, 3, 4}, {1, 2, 3})),
        ("jobs/test_matrix.py", ({matrix.JOBS}, set()), ({matrix.JOBS}, set())),
        ("jobs/test_soak.py", ({matrix.JOBS}, set()), ({matrix.JOBS}, {matrix.JOBS})),
        ("jobs/test_preemptible.py", (set(), {matrix.JOBS}), (set(), {matrix.JOBS})),
        ("pure/test_exports.py", ({matrix.PURE}, set()), ({matrix.PURE}, set())),
    ],
)
def test_markers_say_where_a_file_runs(file: str, usual: Any, everywhere: Any) -> None:
    assert [matrix.places(f"tests/{file}", with_all) for with_all in (False, True)] == [usual, everywhere]


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
