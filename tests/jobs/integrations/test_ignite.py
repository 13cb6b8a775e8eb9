"""PyTorch-Ignite over our default group: its collective tutorial's programs, then training with its engines."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.jobs import run

pytestmark = pytest.mark.any_mpi

PROGRAM = str(Path(__file__).parent / "ignite_program.py")
RANKS = 3
"""As in the tutorial."""


@pytest.mark.skipif(find_spec("ignite") is None, reason="pytorch-ignite is not installed")
def test_ignite(tmp_path: Path) -> None:
    result = run(RANKS, PROGRAM, str(tmp_path))
    assert result.code == 0, result.output
    assert result.output.count("all of ignite's collectives and a training") == RANKS, result.output
