"""Libraries that train with torch, over our default group."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.jobs import run

pytestmark = pytest.mark.any_mpi


@pytest.mark.parametrize(("package", "ranks"), [("accelerate", 2), ("ignite", 3), ("pytorch_lightning", 2)])
def test_a_library_trains(package: str, ranks: int, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    program = Path(__file__).with_name(f"{package.removeprefix('pytorch_')}_program.py")
    result = run(ranks, str(program), str(tmp_path)).good()
    assert result.output.count("all of it works") == ranks, result.output
