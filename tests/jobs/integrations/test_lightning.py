"""Lightning's Trainer with its MPI environment and our process group."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.jobs import run

pytestmark = pytest.mark.any_mpi

PROGRAM = str(Path(__file__).parent / "lightning_program.py")
RANKS = 2


@pytest.mark.skipif(find_spec("pytorch_lightning") is None, reason="pytorch-lightning is not installed")
def test_lightning(tmp_path: Path) -> None:
    result = run(RANKS, PROGRAM, str(tmp_path))
    assert result.code == 0, result.output
    assert result.output.count("trained, validated, saved and loaded") == RANKS, result.output
