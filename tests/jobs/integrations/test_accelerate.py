"""accelerate, which takes the default group that it finds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.jobs import run

pytestmark = pytest.mark.any_mpi

PROGRAM = str(Path(__file__).parent / "accelerate_program.py")
RANKS = 2


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate() -> None:
    result = run(RANKS, PROGRAM)
    assert result.code == 0, result.output
    assert result.output.count("trained and gathered") == RANKS, result.output
