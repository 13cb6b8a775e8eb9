"""examples/preemptible.py: stopped by a signal and started again, it ends as it would have ended."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from tests.jobs.jobs import NEEDS_TORCH, REPOSITORY, ended, run, started, until

pytestmark = [NEEDS_TORCH, pytest.mark.last_mpi]

EXAMPLE = str(REPOSITORY / "examples" / "preemptible.py")
MORE = 1000
"""Steps after the one at which it was stopped."""


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def test_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    whole, parts = folder(tmp_path, "whole"), folder(tmp_path, "parts")
    argv = [sys.executable, "-m", "mpicoll", "run", "-n", "2", EXAMPLE, "--steps", str(10**9), str(parts)]
    with started(*argv) as (it, output):
        until(lambda: "steps 0 to" in output.read_text(), "it trains")
        it.process.send_signal(signal.SIGUSR1)
        first = ended(it, output).good()
    stopped = re.search(r"stopped after step (\d+), which is saved", first.output)
    assert stopped, first.output
    assert not (parts / "finished").exists()

    steps = int(stopped[1]) + MORE
    program = [EXAMPLE, "--steps", str(steps)]
    assert run(2, *program, str(whole)).code == 0
    run(2, *program, str(parts)).good(f"steps {stopped[1]} to {steps}")
    assert (parts / "finished").read_text() == (whole / "finished").read_text()
    assert float((parts / "finished").read_text().split()[-1]) < 0.05
    assert sorted(path.name for path in parts.iterdir()) == ["checkpoint.pt", "finished"]

    # Killed after its last checkpoint and before it says that it is done: there is no step left that has a loss.
    (parts / "finished").unlink()
    run(2, *program, str(parts)).good(f"steps {steps} to {steps}")
    assert (parts / "finished").read_text() == (whole / "finished").read_text()
