"""Tests that run on ranks, under pytest, which puts a file of its own in the place of stderr."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.jobs import half, run, script

pytestmark = pytest.mark.slow

TESTS = """
import numpy as np
import mpicoll

comm = mpicoll.Communicator()

def test_sum():
    comm.allreduce(np.ones(2))
    assert comm.rank != 1, "rank 1 is odd"
    comm.barrier()

def test_other():
    comm.allreduce(np.ones(3))
"""


@pytest.mark.parametrize("options", half([[], ["-x"]]))
def test_a_test_fails_on_one_rank(options: list[str], tmp_path: Path) -> None:
    """That rank goes on to the next test, and the others wait. Or it ends, and pytest itself says why."""
    path = script(tmp_path, TESTS, "test_it.py")
    result = run(2, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *options, path).bad(code=1)
    if options:
        assert re.search(r"^E +AssertionError: rank 1 is odd$", result.output, re.M), result.output
    else:
        assert re.search(r"^  rank 0  call 1: barrier, at test_it.py:10 in test_sum", result.output, re.M)
        failed = r"after \S*test_it.py::test_sum failed with AssertionError: rank 1 is odd"
        line = rf"^  rank 1  call 1: allreduce sum of 3 float64, at test_it.py:13 in test_other \({failed}\)"
        assert re.search(line, result.output, re.M), result.output
